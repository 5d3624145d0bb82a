"""dp_reshardable for independent_reader.py: a store whose keys name the model's tensors, stacked
over layers and experts, and whose flat buffers name no parameters.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from pathlib import Path

import torch

from independent_digest import load
from independent_reader import OUTPUT, WORDS, State, is_expert

# In the order in which GPTModel's local modules register them.
ORDER = """word_embeddings position_embeddings input_layernorm linear_proj linear_qkv
pre_mlp_layernorm mlp.router mlp.linear_fc1 mlp.linear_fc2 mlp.experts shared_experts
final_layernorm output_layer""".split()
NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}


def read_store(folder: Path) -> State:
    """dp_reshardable: a store whose flat buffers name no parameters."""
    metadata, stored = pickle.loads((folder / ".metadata").read_bytes()), {}
    for index, place in metadata.storage_data.items():
        with open(folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            part = load(io.BytesIO(file.read(place.length)))
        if index.offset is None:
            stored[index.fqn] = part
            continue
        size = metadata.state_dict_metadata[index.fqn].size
        whole = stored.setdefault(index.fqn, torch.zeros(size, dtype=part.dtype))
        whole[tuple(slice(o, o + n) for o, n in zip(index.offset, part.shape, strict=True))] = part
    if not any("gbuf_idx_" in key for key in stored):
        raise NotImplementedError("a store without flat buffers")
    state, params = State(load(folder / "common.pt")), {}
    for key, tensor in stored.items():
        if isinstance(tensor, torch.Tensor) and ".distributed." not in key:
            params |= unstacked(key, tensor)
    if state.shares_words:
        params[OUTPUT] = params[WORDS]
    for apart in (False, True)[: 1 + (state.ep > 1)]:
        for k in range(state.pp * (state.ep * state.etp if apart else state.tp)):
            prefix = f"chained_{int(apart)}." if state.ep > 1 else ""
            prefix += f"optimizer.distributed.dp_group_idx_{k}."
            read_group(state, params, stored, (apart, k, prefix))
    return state


def unstacked(key: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    for stored, own in NORMS.items():
        key = key.replace(stored, own)
    if re.match(r"decoder\.layers\.\D", key):
        rows = {f"decoder.layers.{i}.{key[15:]}": layer for i, layer in enumerate(tensor)}
        return {k: v for name, layer in rows.items() for k, v in unstacked(name, layer).items()}
    if "experts.experts" in key:
        return {key.replace("experts.experts", f"experts.local_experts.{i}"): expert
                for i, expert in enumerate(tensor)}  # fmt: skip
    return {key: tensor}


def registered(name: str) -> tuple:
    place = next(i for i, part in enumerate(ORDER) if part in name)
    numbers = [int(digits) for digits in re.findall(r"(?<=\.)\d+(?=\.)", name)]
    layer = numbers[0] if numbers else 1e9 * (not name.startswith("embedding")) - 1
    return layer, place, numbers[1:], "fc2" in name, name.endswith("bias")


def read_group(state: State, params: dict, stored: dict, which: tuple) -> None:
    (apart, k, prefix), count = which, state.args["num_layers"] // (state.pp * state.vpp)
    each, chunks = (state.ep * state.etp if apart else state.tp), defaultdict(list)
    rank, stage, ep = k % (state.etp if apart else state.tp), k // each, k % each // state.etp
    for name in sorted(params, key=registered):
        layer, _, numbers, *_ = registered(name)
        part = max(0, min(layer // count, state.pp * state.vpp - 1))
        is_mine = state.ep == 1 or is_expert(name) == apart
        if apart and is_mine:
            is_mine = numbers[0] // (state.args["num_experts"] // state.ep) == ep
        if part % state.pp == stage and is_mine:
            chunks[part // state.pp].append((name, state.part(name, params[name], rank)))
            state.put("", name, rank, chunks[part // state.pp][-1][1])
    optimizer = {
        key[len(prefix) :].partition("/")[0]: value[0]
        for key, value in stored.items()
        if key.startswith(prefix) and "/shard_" in key and "per_bucket_numel" not in key
    }
    for gbuf, (chunk, mine) in enumerate(sorted(chunks.items())):
        state.put_groups(optimizer, mine)
        buckets = defaultdict(dict)
        for key, tensor in stored.items():
            if key.startswith(f"{prefix}gbuf_idx_{gbuf}."):
                _, bucket, name = re.fullmatch(r"(.*bucket_idx_)(\d+)\.(\w+)", key).groups()
                buckets[name][int(bucket)] = tensor
        flat = {n: torch.cat([b[i] for i in range(len(b))]) for n, b in buckets.items()}
        state.put_flat(mine, (stage, chunk), rank, flat)

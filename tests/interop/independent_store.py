"""dp_reshardable, a third form, by what independent_reader.py knows of flat buffers: a store whose
keys name the tensors of the model, stacked over layers and experts; buffers name no parameters.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from pathlib import Path

import torch

from independent_reader import OUTPUT, WORDS, State, load, read_flat

# In the order in which GPTModel's local modules register them.
ORDER = """word_embeddings position_embeddings input_layernorm linear_proj linear_qkv
pre_mlp_layernorm mlp.router mlp.linear_fc1 mlp.linear_fc2 mlp.experts shared_experts
final_layernorm output_layer""".split()
NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}


def stored_in(folder: Path) -> dict:
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
    return stored


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


def part_of(state: State, name: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
    if (axis := state.axis(name)) is None:
        return whole
    halves = whole.chunk(2 if "linear_fc1" in name and state.args["swiglu"] else 1, axis)
    return torch.cat([half.chunk(state.ranks(name), axis)[rank] for half in halves], axis)


def chunks_of(state: State, params: dict, is_apart: bool, at: tuple[int, int, int]) -> list:
    """The model's chunks on a rank: its parts of what the optimizer has, the rest whole."""
    stage, ep, rank = at
    chunks, last = defaultdict(list), state.args["num_layers"] // state.layers_of_chunk - 1
    for name in sorted(params, key=registered):
        layer, _, numbers, *_ = registered(name)
        chunk, its_stage = divmod(max(0, min(layer // state.layers_of_chunk, last)), state.pp)
        is_its, tensor = state.is_apart(name) == is_apart, params[name]
        if its_stage != stage:
            continue
        if is_its and is_apart and numbers[0] * state.ep // state.args["num_experts"] != ep:
            continue
        name = state.shared.get(name, name)
        if is_its:
            tensor = part_of(state, name, tensor, rank)
            state.put("", name, rank, tensor)
        chunks[chunk].append((name, tensor))
    return [chunk for _, chunk in sorted(chunks.items())]


def read_group(state: State, chunks: list, stored: dict, which: tuple) -> None:
    """Of one data-parallel group: its settings, and its buffers as distrib_optim.pt has them."""
    is_apart, rank, prefix = which
    optimizer = {
        key[len(prefix) :].partition("/")[0]: value[0]
        for key, value in stored.items()
        if key.startswith(prefix) and "/shard_" in key and "per_bucket_numel" not in key
    }
    buckets = defaultdict(lambda: defaultdict(dict))
    for key, tensor in stored.items():
        found = re.fullmatch(re.escape(prefix) + r"gbuf_idx_(\d+)\..*bucket_idx_(\d+)\.(\w+)", key)
        if found:
            buckets[int(found[1])][found[3]][int(found[2])] = tensor
    buffers = {}
    for number, states in sorted(buckets.items()):
        flat = {name: torch.cat([one for _, one in sorted(parts.items())])
                for name, parts in states.items()}  # fmt: skip
        buffers[number] = {"": {**flat, "numel_unpadded": flat["param"].numel()}}
    read_flat(state, [(int(is_apart), optimizer, buffers)], chunks, rank)


def read(root: Path) -> tuple[dict[str, torch.Tensor], dict]:
    iteration = int((root / "latest_checkpointed_iteration.txt").read_text())
    folder = root / f"iter_{iteration:07d}"
    state, stored, params = State(load(folder / "common.pt")), stored_in(folder), {}
    if not any("gbuf_idx_" in key for key in stored):
        raise NotImplementedError("a store without flat buffers")
    for key, tensor in stored.items():
        if isinstance(tensor, torch.Tensor) and ".distributed." not in key:
            params |= unstacked(key, tensor)
    params |= {OUTPUT: params[WORDS]} if state.shared else {}
    for is_apart in (False, True)[: 1 + (state.ep > 1)]:
        ranks = state.etp if is_apart else state.tp
        each = state.ep * state.etp if is_apart else state.tp
        for number in range(state.pp * each):
            rank = number % ranks
            at = number // each, number % each // ranks, rank
            prefix = f"chained_{int(is_apart)}." if state.ep > 1 else ""
            prefix += f"optimizer.distributed.dp_group_idx_{number}."
            chunks = chunks_of(state, params, is_apart, at)
            read_group(state, chunks, stored, (is_apart, rank, prefix))
    return state.logical()

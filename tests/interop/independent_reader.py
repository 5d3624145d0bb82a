"""A second reader of Megatron's checkpoints: `independent_reader.py ROOT` prints the digest that
`ckpt-inspect hash --logical -q ROOT` has to print, of `torch` folders (LayerWise, distrib_optim.pt)
and, with independent_store.py, of dp_reshardable.

Written from docs/formats. It shares nothing with Shardwise or with other tests, reads with
torch.load alone and refuses what it does not know.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import torch

from independent_digest import LEFT_OUT_OF_ARGS, NOT_OBJECTS, digest, encode, load, raw

WORDS, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


class State:
    """A checkpoint's common state, its parts of tensors by name, and who is in which group."""

    def __init__(self, common: dict):
        self.common, self.args = common, common["args"].state[0]
        arg = self.args.get
        self.tp, self.cp = arg("tensor_model_parallel_size"), arg("context_parallel_size")
        self.pp, self.dp = arg("pipeline_model_parallel_size"), arg("data_parallel_size")
        self.vpp = arg("virtual_pipeline_model_parallel_size") or 1
        self.ep = arg("expert_model_parallel_size") or 1
        self.etp = arg("expert_tensor_parallel_size") or self.tp
        self.edp = self.tp * self.cp * self.dp // self.etp // self.ep
        self.halves = 2 if arg("swiglu") else 1
        self.shares_words = not arg("untie_embeddings_and_output_weights") and self.pp > 1
        unknown = """use_tp_pp_dp_mapping mtp_num_layers use_precision_aware_optimizer
        ddp_num_buckets pipeline_model_parallel_layout decoder_first_pipeline_num_layers"""
        if arg("transformer_impl") != "local" or any(map(arg, unknown.split())):
            raise NotImplementedError("transformer_impl, or one of " + unknown)
        self.parts = defaultdict(dict)  # (state, name): {tensor parallel rank: its part}
        self.groups = defaultdict(dict)  # optimizer: {encoded settings: (settings, names)}
        self.rests = {}  # optimizer: its further keys
        self.steps = {}  # optimizer: the count of steps, where parameters have one

    def axis(self, name: str) -> int | None:
        """The dimension that tensor-parallel ranks share."""
        if name in (WORDS, OUTPUT) or re.search(r"\.linear_(qkv|fc1)\.(weight|bias)$", name):
            return 0
        return 1 if re.search(r"\.linear_(proj|fc2)\.weight$", name) else None

    def join(self, name: str, parts: dict[int, torch.Tensor]) -> torch.Tensor:
        tensors = [parts[rank] for rank in range(self.etp if is_expert(name) else self.tp)]
        if (axis := self.axis(name)) is not None:
            pieces = [t.chunk(self.halves if "linear_fc1" in name else 1, axis) for t in tensors]
            return torch.cat([piece for half in zip(*pieces, strict=True) for piece in half], axis)
        if any(raw(tensor) != raw(tensors[0]) for tensor in tensors):
            raise ValueError(f"{name}: ranks differ")
        return tensors[0]

    def part(self, name: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
        if (axis := self.axis(name)) is None:
            return whole
        ranks = self.etp if is_expert(name) else self.tp
        halves = whole.chunk(self.halves if "linear_fc1" in name else 1, axis)
        return torch.cat([half.chunk(ranks, axis)[rank] for half in halves], axis)

    def put(self, state: str, name: str, rank: int, tensor: torch.Tensor) -> None:
        name = WORDS if name == OUTPUT and self.shares_words else name
        before = self.parts[state, name].setdefault(rank, tensor)
        if before.shape != tensor.shape or raw(before) != raw(tensor):
            raise ValueError(f"{state} {name}: copies of part {rank} differ")

    def put_group(self, optimizer: int, settings: dict, names: list[str]) -> None:
        kept = {k: v for k, v in settings.items() if k not in ("is_expert_parallel", "params")}
        if names:
            self.groups[optimizer].setdefault(encode(kept), (kept, set()))[1].update(names)

    def put_rest(self, optimizer: int, found: dict) -> None:
        left_out = ("optimizer", "fp32_from_fp16_params", "param_state_sharding_type")
        inner = {k: v for k, v in found["optimizer"].items() if k not in ("param_groups", "state")}
        rest = {k: v for k, v in found.items() if k not in left_out}
        rest |= {"optimizer": inner} if inner else {}
        if encode(self.rests.setdefault(optimizer, rest)) != encode(rest):
            raise ValueError(f"optimizer {optimizer}: ranks differ")

    def put_step(self, optimizer: int, step) -> None:
        """Where parameters count steps: the one count of the optimizer."""
        step = (str(step.dtype)[6:], raw(step)) if isinstance(step, torch.Tensor) else step
        assert self.steps.setdefault(optimizer, {"step": step}) == {"step": step}

    def belongs(self, name: str, tensor: torch.Tensor, group: dict) -> bool:
        decays = tensor.dim() > 1 and not name.endswith(".bias")
        apart = is_expert(name) and self.ep > 1
        return group["wd_mult"] == float(decays) and group["is_expert_parallel"] == apart

    def places(self, sizes: list[tuple], where: tuple[int, int], ranks: int) -> dict:
        """Where each parameter lies in a flat buffer, and None: where that ends."""
        limit = math.inf
        if self.args["overlap_grad_reduce"] and where == (0, 0):
            limit = self.args.get("ddp_bucket_size") or max(40e6, 1e6 * self.dp * self.cp)
        is_busy = self.args.get("ddp_pad_buckets_for_high_nccl_busbw")
        unit = math.lcm(ranks, 1 << 16 if is_busy else 128)
        found, begin, end, left_out, is_full = {}, 0, 0, 0, False
        for name, size in reversed(sizes):
            is_alone = self.shares_words and name in (WORDS, OUTPUT)
            if is_full or (is_alone and found):
                begin = -(-end // unit) * unit
                left_out += begin - end
                end = begin
            end = -(-end // 64) * 64
            found[name] = end - left_out
            end += size
            is_full = is_alone or end - begin >= limit
        return {**found, None: end - left_out}

    def put_groups(self, optimizer: dict, params: list) -> None:
        self.put_rest(0, optimizer)
        for group in optimizer["optimizer"]["param_groups"]:
            self.put_group(0, group, [p[0] for p in params if self.belongs(*p, group)])

    def put_flat(self, params: list, where: tuple[int, int], rank: int, buffer: dict) -> None:
        """`buffer`: each state as one flat tensor, the buckets one behind the other."""
        ranks = self.edp if is_expert(params[0][0]) and self.ep > 1 else self.dp * self.cp
        places = self.places([(name, one.numel()) for name, one in params], where, ranks)
        for state, flat in buffer.items():
            if flat.numel() != places[None]:
                raise ValueError(f"{state}: {flat.numel()} elements, not {places[None]}")
            for name, one in params:
                part = flat[places[name] : places[name] + one.numel()].view(one.shape)
                self.put("fp32_param" if state == "param" else state, name, rank, part)

    def logical(self) -> tuple[dict[str, torch.Tensor], dict]:
        whole = {key: self.join(key[1], parts) for key, parts in self.parts.items()}
        for (state, name), tensor in whole.items():
            weight = whole["", name]
            rounded = raw(tensor.to(weight.dtype)) if state == "fp32_param" else raw(weight)
            if tensor.shape != weight.shape or rounded != raw(weight):
                raise ValueError(f"{state} of {name} is not that of the weight")
        found = {k: v for k, v in self.common.items() if k not in NOT_OBJECTS and k[:5] != "model"}
        found["args"] = type(self.common["args"])()
        found["args"].state = ({k: v for k, v in self.args.items() if k not in LEFT_OUT_OF_ARGS},)
        for optimizer, groups in self.groups.items():
            shared = {OUTPUT: WORDS} if self.shares_words else {}
            rows = [{**kept, "params": sorted({shared.get(name, name) for name in names})}
                    for kept, names in groups.values()]  # fmt: skip
            rows.sort(key=lambda row: row["params"][0])
            found[f"optimizer.{optimizer}"] = {
                "param_groups": rows, **self.rests[optimizer], **self.steps.get(optimizer, {})}
        return {f"optimizer.state.{s}.{n}" if s else n: t for (s, n), t in whole.items()}, found


def is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def listing(value) -> list:
    return value if isinstance(value, list) else [value]


def renumbered(name: str, first_layer: int, first_expert: int) -> str:
    name = re.sub(r"(?<=^decoder\.layers\.)\d+", lambda m: str(int(m[0]) + first_layer), name)
    return re.sub(r"(?<=local_experts\.)\d+", lambda m: str(int(m[0]) + first_expert), name)


def read_torch(folders: list[Path]) -> State:
    messages = [(folder, load(folder / "model_optim_rng.pt")) for folder in folders]
    state, layers, chunks = State(messages[0][1]), defaultdict(set), []
    for folder, message in messages:
        at = [int(digits) for digits in folder.name.split("_")[2:]]
        stage, ep = at[1] if state.pp > 1 else 0, at[-1] if state.ep > 1 else 0
        models = [message[key] for key in sorted(message) if key[:5] == "model"]
        expert = ep * (state.args["num_experts"] or 0) // state.ep
        chunks.append((folder, message, stage, expert, models))
        for chunk, model in enumerate(models):
            layers[chunk, stage] |= {n.split(".")[2] for n in model if n[:15] == "decoder.layers."}
    for folder, message, stage, expert, models in chunks:
        rows, rank = [], message["args"].state[0]["rank"] % (state.tp * state.cp * state.dp)
        for chunk, model in enumerate(models):
            layer = sum(len(found) for at, found in layers.items() if at < (chunk, stage))
            assert not any(v is not None for k, v in model.items() if k.endswith("_extra_state"))
            found = [(renumbered(k, layer, expert), v) for k, v in model.items() if v is not None]
            rows.append(found)
            for name, tensor in found:
                state.put("", name, rank % (state.etp if is_expert(name) else state.tp), tensor)
        if (folder / "distrib_optim.pt").exists():
            flat = listing(load(folder / "distrib_optim.pt"))
            for index, optimizer in enumerate(listing(message["optimizer"])):
                read_flat(state, optimizer, flat[index], (rows, stage, rank, index))
        for file in folder.glob("layer_wise_optimizer_*.pt"):
            data_rank = int(file.stem.rpartition("_")[2])
            rank = rank % state.tp + state.tp * data_rank
            read_layer_wise(state, listing(load(file)), sum(rows, []), (rank, data_rank))
    return state


def read_flat(state: State, optimizer: dict, stored: dict | None, whose: tuple) -> None:
    rows, stage, rank, index = whose
    for chunk, params in enumerate(rows):
        mine = [p for p in params if state.ep == 1 or is_expert(p[0]) == bool(index)]
        state.put_groups(optimizer, mine)
        if mine and stored:
            (buffer,) = stored[sum(1 for before in rows[:chunk] if before)].values()
            assert buffer.pop("numel_unpadded") == buffer["param"].numel()
            part = rank % (state.etp if index else state.tp)
            state.put_flat(mine, (stage, chunk), part, buffer)


def read_layer_wise(state: State, stored: list, params: list, ranks: tuple[int, int]) -> None:
    """The deal: which of the parameters each group of this rank has, in which order."""
    assert state.cp == 1
    dealt, mine, counts, (rank, data_rank) = [], defaultdict(list), [0, 0], ranks
    for index, optimizer in enumerate(stored):
        for at, group in enumerate(optimizer["optimizer"]["param_groups"]):
            for name, tensor in params:
                first = len(stored) == 1 or (tensor.dim() == 2 and name not in (WORDS, OUTPUT))
                if state.belongs(name, tensor, group) and (index == 0) == first:
                    dealt.append((index, at, name, tensor))
    if state.dp > 1:
        dealt.sort(key=lambda row: row[3].numel())
    for index, at, name, _ in dealt:
        apart = is_expert(name) and state.ep > 1
        count, me = (state.edp, rank // state.etp // state.ep) if apart else (state.dp, data_rank)
        lap, place = divmod(counts[apart], count)
        counts[apart] += 1
        if me == (count - 1 - place if lap % 2 else place):
            mine[index, at].append(name)
    for index, optimizer in enumerate(stored):
        state.put_rest(index, optimizer)
        entries = iter(sorted(optimizer["optimizer"]["state"].items()))
        for at, group in enumerate(optimizer["optimizer"]["param_groups"]):
            state.put_group(index, group, mine[index, at])
            masters = optimizer["fp32_from_fp16_params"][at]
            for name, master in zip(mine[index, at], masters, strict=True):
                states = {"fp32_param": master, **next(entries)[1]}
                if "step" in states:
                    state.put_step(index, states.pop("step"))
                for key, tensor in states.items():
                    part = rank % (state.etp if is_expert(name) else state.tp)
                    state.put(key, name, part, tensor)


def read(root: Path) -> tuple[dict[str, torch.Tensor], dict]:
    iteration = (root / "latest_checkpointed_iteration.txt").read_text()
    folder = root / f"iter_{int(iteration):07d}"
    folders = sorted(folder.glob("mp_rank_*"))
    if folders:
        return read_torch(folders).logical()
    from independent_store import read_store  # which imports this file

    return read_store(folder).logical()


if __name__ == "__main__":
    print(digest(*read(Path(sys.argv[1]))))

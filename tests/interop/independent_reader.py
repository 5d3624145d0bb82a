"""A second reader of Megatron's `torch` checkpoints, LayerWise or with distrib_optim.pt:
`independent_reader.py ROOT` prints what `ckpt-inspect hash --logical -q ROOT` has to print.

Written from docs/formats. It shares nothing with Shardwise or with other tests, reads with
torch.load alone and refuses what it does not know.
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
import types
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import torch

ENCODING = Path(__file__).resolve().parents[2] / "docs/formats/canonical_encoding.md"
LISTED = ENCODING.read_text().partition("and what\n  follows from these:\n")[2].partition(".\n")[0]
LEFT_OUT_OF_ARGS = set(re.findall(r"`(\w+)`", LISTED))
assert {"save", "cuda_graph_modules"} <= LEFT_OUT_OF_ARGS
NOT_OBJECTS = {"args", "optimizer", "rng_state", "rerun_state_machine", "content_metadata"}
WORDS, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


class Made:
    """An object as its pickle says it: what would be called, with what, and what state it gets."""

    def __new__(cls, *args):
        made = object.__new__(cls)
        made.args, made.state = args, ()
        return made

    def __setstate__(self, state):
        self.state = (state,)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        kept = (module == "torch" and name.endswith("Storage")) or module == "torch._utils"
        if kept or (module, name) == ("collections", "OrderedDict"):
            return super().find_class(module, name)
        if name == "_rebuild_from_type_v2":  # a tensor with attributes, which have no meaning here
            return lambda function, _class, arguments, _attributes: function(*arguments)
        return type(name, (Made,), {"path": (module, name)})


def load(file):
    inert = types.SimpleNamespace(Unpickler=Unpickler, __name__="inert")
    return torch.load(file, pickle_module=inert, weights_only=False)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def text(value: str | bytes) -> bytes:
    value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(value)) + value


def listed(letter: bytes, parts: list[bytes]) -> bytes:
    return letter + struct.pack("<Q", len(parts)) + b"".join(parts)


def described(tensor: torch.Tensor) -> bytes:
    sizes = struct.pack(f"<{1 + tensor.dim()}Q", tensor.dim(), *tensor.shape)
    return text(str(tensor.dtype)[6:]) + sizes + sha256(raw(tensor)).digest()


def encode(value) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"T", False: b"F"}[value]
    if isinstance(value, type):
        return b"G" + text(value.path[0]) + text(value.path[1])
    if isinstance(value, float):
        return b"D" + struct.pack("<d", value)
    for kind, letter in ((int, b"I"), (str, b"S"), (bytes, b"B")):
        if isinstance(value, kind):
            return letter + text(str(value) if kind is int else value)
    return b"H" + sha256(content(value)).digest()


def content(value) -> bytes:
    if isinstance(value, (list, tuple)):
        return listed(b"l" if isinstance(value, list) else b"t", [encode(item) for item in value])
    if isinstance(value, dict):
        return listed(b"d", sorted(encode(key) + encode(each) for key, each in value.items()))
    if isinstance(value, torch.Tensor):
        return b"v" + described(value) + (b"T" if value.requires_grad else b"F") + b"0"
    called = encode(type(value)) + encode(value.args) + b"0"
    state = b"1" + encode(value.state[0]) if value.state else b"0"
    return b"o" + called + listed(b"l", []) + listed(b"", []) + state  # nothing appended or set


def digest(tensors: dict[str, torch.Tensor], objects: dict) -> str:
    rows = [text("") + text(name) + described(one) for name, one in sorted(tensors.items())]
    others = [text("") + text(n) + sha256(encode(v)).digest() for n, v in sorted(objects.items())]
    return sha256(listed(b"", rows) + listed(b"", others)).hexdigest()


class State:
    """A checkpoint's common state, its parts of tensors by name, and who is in which group."""

    def __init__(self, common: dict):
        self.common, self.args = common, common["args"].state[0]
        arg = self.args.get
        self.tp, self.cp = arg("tensor_model_parallel_size"), arg("context_parallel_size")
        self.pp, self.dp = arg("pipeline_model_parallel_size"), arg("data_parallel_size")
        self.ep = arg("expert_model_parallel_size") or 1
        self.etp = arg("expert_tensor_parallel_size") or self.tp
        vpp = arg("virtual_pipeline_model_parallel_size") or 1
        self.layers_of_chunk = arg("num_layers") // (self.pp * vpp)
        self.bucket_size = arg("ddp_bucket_size") or max(40e6, 1e6 * self.dp * self.cp)
        is_untied = self.pp == 1 or arg("untie_embeddings_and_output_weights")
        self.shared = {} if is_untied else {OUTPUT: WORDS}
        unknown = """use_tp_pp_dp_mapping mtp_num_layers use_precision_aware_optimizer
        ddp_num_buckets pipeline_model_parallel_layout decoder_first_pipeline_num_layers
        decoder_last_pipeline_num_layers"""
        assert arg("transformer_impl") == "local" and not any(map(arg, unknown.split()))
        self.parts = defaultdict(dict)  # (state, name): {tensor parallel rank: its part}
        self.groups = defaultdict(dict)  # optimizer: {encoded settings: (settings, names)}
        self.rests = defaultdict(dict)  # optimizer: its further keys

    def is_apart(self, name: str) -> bool:
        """Whether experts alone share its optimizer and its data-parallel ranks."""
        return self.ep > 1 and ".mlp.experts." in name

    def stride(self, name: str) -> int:
        """From one rank of a stage to the next that has the same part."""
        return self.etp * self.ep if self.is_apart(name) else self.tp

    def ranks(self, name: str) -> int:
        return self.etp if ".mlp.experts." in name else self.tp

    def axis(self, name: str) -> int | None:
        """The dimension that tensor-parallel ranks share."""
        if name in (WORDS, OUTPUT) or re.search(r"\.linear_(qkv|fc1)\.(weight|bias)$", name):
            return 0
        return 1 if re.search(r"\.linear_(proj|fc2)\.weight$", name) else None

    def join(self, name: str, parts: dict[int, torch.Tensor]) -> torch.Tensor:
        tensors = [parts[rank] for rank in range(self.ranks(name))]
        if (axis := self.axis(name)) is not None:
            halves = 2 if self.args["swiglu"] and "linear_fc1" in name else 1
            pieces = zip(*(tensor.chunk(halves, axis) for tensor in tensors), strict=True)
            return torch.cat([piece for half in pieces for piece in half], axis)
        assert all(raw(tensor) == raw(tensors[0]) for tensor in tensors), f"{name}: ranks differ"
        return tensors[0]

    def put(self, state: str, name: str, rank: int, tensor: torch.Tensor) -> None:
        before = self.parts[state, name].setdefault(rank % self.ranks(name), tensor)
        assert described(before) == described(tensor), f"{state} {name}: copies differ"

    def belongs(self, name: str, tensor: torch.Tensor, group: dict) -> bool:
        decays = float(tensor.dim() > 1 and not name.endswith(".bias"))
        return (group["wd_mult"], group["is_expert_parallel"]) == (decays, self.is_apart(name))

    def put_group(self, optimizer: int, settings: dict, names: list[str]) -> None:
        kept = {k: v for k, v in settings.items() if k not in ("is_expert_parallel", "params")}
        if names:
            self.groups[optimizer].setdefault(encode(kept), (kept, set()))[1].update(names)

    def put_rest(self, optimizer: int, found: dict) -> None:
        assert found.get("optimizer", {}).keys() <= {"param_groups", "state"}
        of_parameters = {"optimizer", "fp32_from_fp16_params", "param_state_sharding_type"}
        for key in found.keys() - of_parameters:
            assert encode(self.rests[optimizer].setdefault(key, found[key])) == encode(found[key])

    def logical(self) -> tuple[dict[str, torch.Tensor], dict]:
        whole = {key: self.join(key[1], parts) for key, parts in self.parts.items()}
        for (state, name), tensor in whole.items():
            weight = whole["", name]
            if state == "fp32_param":
                assert raw(tensor.to(weight.dtype)) == raw(weight), f"{name}: not its master"
        found = {k: v for k, v in self.common.items() if k not in NOT_OBJECTS and k[:5] != "model"}
        found["args"] = type(self.common["args"])()
        found["args"].state = ({k: v for k, v in self.args.items() if k not in LEFT_OUT_OF_ARGS},)
        for optimizer, groups in self.groups.items():
            rows = [{**settings, "params": sorted(names)} for settings, names in groups.values()]
            rows.sort(key=lambda row: row["params"][0])
            found[f"optimizer.{optimizer}"] = {"param_groups": rows, **self.rests[optimizer]}
        return {f"optimizer.state.{s}.{n}" if s else n: t for (s, n), t in whole.items()}, found


def places(state: State, params: list, limit: float) -> dict:
    """Where each parameter lies in a flat buffer without gaps between buckets; None: its end."""
    found, begin, size, is_full = {}, 0, 0, False
    for name, tensor in reversed(params):
        is_alone = name == WORDS and bool(state.shared)
        if is_full or (is_alone and size):
            begin, size = begin + size, 0
        size = -(-size // 64) * 64
        found[name] = begin + size
        size += tensor.numel()
        is_full = is_alone or size >= limit
    return {**found, None: begin + size}


def read_flat(state: State, optimizers: zip, chunks: list, rank: int) -> None:
    """Each optimizer has a buffer for each chunk of the model that it has parameters of."""
    for index, optimizer, stored in optimizers:
        state.put_rest(0, optimizer)
        buffers = (one for key, one in (stored or {}).items() if key != "buckets_coalesced")
        for chunk in chunks:
            params = [row for row in chunk if state.is_apart(row[0]) == bool(index)]
            for group in optimizer["optimizer"]["param_groups"]:
                state.put_group(0, group, [row[0] for row in params if state.belongs(*row, group)])
            if not (params and stored):
                continue
            is_early = state.args["overlap_grad_reduce"] and chunk[0][0] == WORDS
            at = places(state, params, state.bucket_size if is_early else float("inf"))
            (buffer,) = next(buffers).values()
            assert {at[None]} == {buffer.pop("numel_unpadded"), *map(torch.numel, buffer.values())}
            for key, flat in buffer.items():
                for name, one in params:
                    part = flat[at[name] : at[name] + one.numel()].view(one.shape)
                    state.put("fp32_param" if key == "param" else key, name, rank, part)


def dealt(state: State, stored: list, params: list, rank: int) -> dict:
    """Which parameters each group of this rank has, in their order: (optimizer, group): names."""
    rows, mine, counts = [], defaultdict(list), [0, 0]
    for index, optimizer in enumerate(stored):
        for at, group in enumerate(optimizer["optimizer"]["param_groups"]):
            for name, tensor in params:
                of_first = len(stored) == 1 or (tensor.dim() == 2 and name not in (WORDS, OUTPUT))
                if of_first == (index == 0) and state.belongs(name, tensor, group):
                    rows.append((tensor.numel(), name, (index, at)))
    for _, name, at in sorted(rows, key=lambda row: row[0]) if state.dp > 1 else rows:
        stride, apart = state.stride(name), state.is_apart(name)
        turns = range(state.tp * state.dp // stride)
        turn = [*turns, *reversed(turns)][counts[apart] % (2 * len(turns))]
        counts[apart] += 1
        if turn == rank // stride:
            mine[at].append(name)
    return mine


def read_layer_wise(state: State, stored: list, params: list, rank: int) -> None:
    assert state.cp == 1
    mine = dealt(state, stored, params, rank)
    for index, optimizer in enumerate(stored):
        state.put_rest(index, optimizer)
        states = iter(sorted(optimizer["optimizer"]["state"].items()))
        for at, group in enumerate(optimizer["optimizer"]["param_groups"]):
            state.put_group(index, group, mine[index, at])
            masters = optimizer["fp32_from_fp16_params"][at]
            for name, master in zip(mine[index, at], masters, strict=True):
                for key, value in {"fp32_param": master, **next(states)[1]}.items():
                    if key == "step":
                        state.put_rest(index, {key: (str(value.dtype)[6:], raw(value))})
                    else:
                        state.put(key, name, rank, value)


def read_folder(state: State, folder: Path) -> None:
    message = load(folder / "model_optim_rng.pt")
    at = [int(digits) for digits in folder.name.split("_")[2:]]
    stage, ep = at[1] if state.pp > 1 else 0, at[-1] if state.ep > 1 else 0
    experts = ep * (state.args["num_experts"] or 0) // state.ep
    rank, chunks = message["args"].state[0]["rank"] % (state.tp * state.cp * state.dp), []
    for key in sorted(key for key in message if key[:5] == "model"):
        layers = (len(chunks) * state.pp + stage) * state.layers_of_chunk
        chunks.append([(state.shared.get(name) or renamed(name, layers, experts), tensor)
                       for name, tensor in message[key].items() if tensor is not None])
        for name, tensor in chunks[-1]:
            state.put("", name, rank, tensor)
    for file in folder.glob("distrib_optim.pt"):
        optimizers = zip((0, 1), listing(message["optimizer"]), listing(load(file)))
        read_flat(state, optimizers, chunks, rank)
    for file in folder.glob("layer_wise_optimizer_*.pt"):
        its_rank = rank % state.tp + state.tp * int(file.stem.rpartition("_")[2])
        read_layer_wise(state, listing(load(file)), sum(chunks, []), its_rank)


def renamed(name: str, layers: int, experts: int) -> str:
    """With the model's numbers: so many layers and experts come before those of this chunk."""
    name = re.sub(r"(?<=^decoder\.layers\.)\d+", lambda m: str(int(m[0]) + layers), name)
    return re.sub(r"(?<=local_experts\.)\d+", lambda m: str(int(m[0]) + experts), name)


def listing(value) -> list:
    return value if isinstance(value, list) else [value]


def read(root: Path) -> tuple[dict[str, torch.Tensor], dict]:
    iteration = int((root / "latest_checkpointed_iteration.txt").read_text())
    folders = sorted((root / f"iter_{iteration:07d}").glob("mp_rank_*"))
    state = State(load(folders[0] / "model_optim_rng.pt"))
    for folder in folders:
        read_folder(state, folder)
    return state.logical()


if __name__ == "__main__":
    print(digest(*read(Path(sys.argv[1]))))

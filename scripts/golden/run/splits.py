"""Where the parameters of a rank lie in the whole model: names, splits, and how to cut and join."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

ROWS, COLUMNS = 0, 1
# First match counts. "marked": Megatron marks it where it is split (the down-projections of MLA).
SPLITS = (
    (r"(^|\.)word_embeddings\.weight$|^output_layer\.weight$", "rows"),
    (r"\.linear_fc1\.(weight|bias)\d*$", "gated_rows"),
    (r"\.linear_fc2\.weight\d*$|\.linear_proj\.weight$", "columns"),
    (r"\.linear_(qkv|q_proj|q_up_proj|kv_up_proj)\.(weight|bias)$|\.eh_proj\.weight$", "rows"),
    (r"\.linear_(q|kv)_down_proj\.weight$", "marked"),
    (r"", "none"),
)


@dataclass(frozen=True)
class Place:
    """One tensor of a rank: its name in the model, and which of `count` parts it is."""

    name: str
    local_name: str
    chunk: int
    shape: tuple[int, ...]
    dim: int  # -1: not split
    count: int
    index: int
    gated: bool
    expert: bool

    @property
    def whole_shape(self) -> tuple[int, ...]:
        sizes = list(self.shape)
        if self.count > 1:
            sizes[self.dim] *= self.count
        return tuple(sizes)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        if self.count == 1:
            return whole
        halves = whole.chunk(2, self.dim) if self.gated else [whole]
        parts = [half.chunk(self.count, self.dim)[self.index] for half in halves]
        return torch.cat(parts, self.dim).contiguous()

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if self.count == 1:
            return parts[0]
        if not self.gated:
            return torch.cat(parts, self.dim).contiguous()
        halves = [part.chunk(2, self.dim) for part in parts]
        return torch.cat([h[0] for h in halves] + [h[1] for h in halves], self.dim).contiguous()


class Names:
    """Names of one model chunk with the layers and experts counted in the whole model."""

    def __init__(self, module, args, parallel_state):
        self.module, self.args = module, args
        size = parallel_state.get_expert_model_parallel_world_size()
        experts = (args.num_experts or 0) // size
        self.first_expert = experts * parallel_state.get_expert_model_parallel_rank()

    def whole(self, local: str) -> str:
        name = re.sub(r"^(decoder|mtp)\.layers\.(\d+)\.", self._layer, local)
        name = re.sub(r"(?<=\.local_experts\.)\d+|(?<=\.experts\.linear_fc[12]\.weight)\d+"
                      r"|(?<=\.experts\.linear_fc[12]\.bias)\d+", self._expert, name)
        if name == "output_layer.weight" and not self.args.untie_embeddings_and_output_weights:
            return "embedding.word_embeddings.weight"
        return name

    def _layer(self, match) -> str:
        layers = getattr(self.module, match[1]).layers
        return f"{match[1]}.layers.{layers[int(match[2])].layer_number - 1}."

    def _expert(self, match) -> str:
        return str(int(match[0]) + self.first_expert)


def _split(name: str, tensor, args) -> tuple[int, bool]:
    kind = next(kind for pattern, kind in SPLITS if re.search(pattern, name))
    if kind == "marked":
        kind = "rows" if getattr(tensor, "tensor_model_parallel", False) else "none"
    dim = {"rows": ROWS, "gated_rows": ROWS, "columns": COLUMNS, "none": -1}[kind]
    return dim, kind == "gated_rows" and args.swiglu


def bare(chunk):
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _place(name, local, tensor, chunk, args, parallel_state) -> Place:
    expert = ".experts." in name
    dim, gated = _split(name, tensor, args)
    count, index = 1, 0
    if dim >= 0 and expert:
        count = parallel_state.get_expert_tensor_parallel_world_size()
        index = parallel_state.get_expert_tensor_parallel_rank()
    elif dim >= 0:
        count = parallel_state.get_tensor_model_parallel_world_size()
        index = parallel_state.get_tensor_model_parallel_rank()
    return Place(name, local, chunk, tuple(tensor.shape), dim if count > 1 else -1, count, index,
                 gated, expert)


def parameters_of(model, args, parallel_state) -> list[tuple[Place, torch.nn.Parameter]]:
    found = []
    for chunk, wrapped in enumerate(model):
        module = bare(wrapped)
        names = Names(module, args, parallel_state)
        for local, tensor in module.named_parameters():
            place = _place(names.whole(local), local, tensor, chunk, args, parallel_state)
            found.append((place, tensor))
    return found


def buffers_of(model, args, parallel_state) -> list[tuple[Place, torch.Tensor]]:
    """Buffers that a checkpoint stores: the bias of a router's experts."""
    found = []
    for chunk, wrapped in enumerate(model):
        module = bare(wrapped)
        names, stored = Names(module, args, parallel_state), module.state_dict()
        for local, tensor in module.named_buffers():
            if local in stored:
                place = _place(names.whole(local), local, tensor, chunk, args, parallel_state)
                found.append((place, tensor))
    return found

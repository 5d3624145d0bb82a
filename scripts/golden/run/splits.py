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
    (r"\.softmax_offset$", "rows"),
    (r"\.linear_(q|kv)_down_proj\.weight$", "marked"),
    (r"\.(mixer|self_attention)\.(in_proj|conv1d)[._]?(weight|bias)$", "segments"),
    (r"\.mixer\.(A_log|dt_bias|D|norm\.weight)$|\.self_attention\.(A_log|dt_bias)$", "rows"),
    (r"\.out_proj\.weight$", "columns"),
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
    sections: tuple[int, ...]  # of the rank's dimension; each is shared on its own
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
        sections = whole.split([size * self.count for size in self.sections], self.dim)
        parts = [section.chunk(self.count, self.dim)[self.index] for section in sections]
        return torch.cat(parts, self.dim).contiguous()

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if self.count == 1:
            return parts[0]
        sections = zip(*(part.split(self.sections, self.dim) for part in parts), strict=True)
        return torch.cat([part for section in sections for part in section],
                         self.dim).contiguous()


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


def _kind(name: str, tensor, args) -> str:
    kind = next(kind for pattern, kind in SPLITS if re.search(pattern, name))
    if kind == "marked":
        return "rows" if getattr(tensor, "tensor_model_parallel", False) else "none"
    is_gated = args.swiglu or getattr(args, "quick_geglu", False)
    return "rows" if kind == "gated_rows" and not is_gated else kind


DIMENSIONS = {"rows": ROWS, "gated_rows": ROWS, "segments": ROWS, "columns": COLUMNS, "none": -1}


def _segments(module, local: str) -> tuple[int, ...]:
    """Rows that a rank has of each projection in one matrix, by what its mixer says of itself."""
    steps = local.split(".")
    for step in steps[:max(k for k, s in enumerate(steps) if s in ("mixer", "self_attention")) + 1]:
        module = getattr(module, step)
    if hasattr(module, "key_head_dim"):  # GatedDeltaNet
        keys, values = module.qk_dim // module.tp_size, module.v_dim // module.tp_size
        heads = module.num_value_heads // module.tp_size
        of_conv = (keys, keys, values)
        return (*of_conv, values, heads, heads) if "in_proj" in local else of_conv
    inner, groups = module.d_inner_local_tp, module.ngroups_local_tp * module.d_state
    of_conv = (inner, groups, groups)
    return (inner, *of_conv, module.nheads_local_tp) if "in_proj" in local else of_conv


def bare(chunk):
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _place(name, local, tensor, chunk, args, parallel_state, module) -> Place:
    expert, kind = ".experts." in name, _kind(name, tensor, args)
    dim, count, index = DIMENSIONS[kind], 1, 0
    if dim >= 0 and expert:
        count = parallel_state.get_expert_tensor_parallel_world_size()
        index = parallel_state.get_expert_tensor_parallel_rank()
    elif dim >= 0:
        count = parallel_state.get_tensor_model_parallel_world_size()
        index = parallel_state.get_tensor_model_parallel_rank()
    sections = ()
    if count > 1:
        sections = ((tensor.shape[dim] // 2,) * 2 if kind == "gated_rows"
                    else _segments(module, local) if kind == "segments" else (tensor.shape[dim],))
        assert sum(sections) == tensor.shape[dim], name
    return Place(name, local, chunk, tuple(tensor.shape), dim if count > 1 else -1, count, index,
                 sections, expert)


def parameters_of(model, args, parallel_state) -> list[tuple[Place, torch.nn.Parameter]]:
    found = []
    for chunk, wrapped in enumerate(model):
        module = bare(wrapped)
        names = Names(module, args, parallel_state)
        for local, tensor in module.named_parameters():
            place = _place(names.whole(local), local, tensor, chunk, args, parallel_state,
                           module)
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
                place = _place(names.whole(local), local, tensor, chunk, args, parallel_state,
                               module)
                found.append((place, tensor))
    return found

"""Checkpoints into models of PyTorch's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import torch

from . import _checkpoint
from ._checkpoint import Checkpoint, Path
from ._errors import InvalidArgumentError, UnsupportedError
from ._tensor import Tensor

Names = Optional[Union[Mapping[str, str], Callable[[str], str]]]
# Under which a state dict often lies in a larger one.
_PREFIXES = ("", "model.", "state_dict.", "module.", "model_state_dict.")
_SLAB_BYTES = 64 << 20


class Loaded(NamedTuple):
    """missing: names of the model's tensors that the checkpoint has not.
    unexpected: names of the checkpoint's tensors that the model has not."""

    missing: list[str]
    unexpected: list[str]


def load_into(model: torch.nn.Module, path: Path, strict: bool = True,
              names: Names = None) -> Loaded:
    """Reads a model's parameters and persistent buffers into the memory that they have.

    Of a DTensor only the part is read that this rank holds; call it on every rank. Beside the
    destinations it holds 64 MiB at most: elements of the same type on the CPU are read in place,
    others are rounded or copied to their device part by part.

    path: any checkpoint that `shardwise.open` takes. Megatron's are read by the names of the
        training state, joined from all ranks.
    strict: raise InvalidArgumentError, before anything is read, where a name is missing or
        unexpected. Those of another shape are always refused.
    names: the checkpoint's name for a name of the model: a mapping, or a function. Default: the
        same, or the same below "model", "state_dict", "module" or "model_state_dict", where most
        of the model's names are.

    Returns (missing, unexpected). Raises UnsupportedError for tensors on the meta device and for
    partial DTensors, and what `shardwise.open` and reading raise; the model is then partly loaded.
    """
    wanted = {name: value for name, value in model.state_dict().items()
              if isinstance(value, torch.Tensor)}
    with _checkpoint.open(path) as checkpoint:
        found, unexpected = _matched(wanted, _stored(checkpoint), names)
        missing = [name for name in wanted if name not in found]
        if strict and (missing or unexpected):
            problem = f"missing: {_some(missing)}; unexpected: {_some(unexpected)}"
            raise InvalidArgumentError(problem,
                                       hint="strict=False loads what is there; names= renames")
        for name, tensor in found.items():
            _check(name, wanted[name], tensor)
        with torch.no_grad():
            for name, tensor in found.items():
                _load(name, wanted[name], tensor)
    return Loaded(missing, unexpected)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more or "none"


def _stored(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Tensors by name, their steps joined with dots; of Megatron's the model's parameters."""
    try:
        return {name: param.weight for name, param in checkpoint.params.items()}
    except UnsupportedError:
        pass
    stored = {}
    for key, tensor in checkpoint.items():
        steps = key[1:].split("/") if key.startswith("/") else [key]
        name = ".".join(step.replace("~1", "/").replace("~0", "~") for step in steps)
        if name in stored:
            raise UnsupportedError(f"two tensors are called {name}", key=key)
        stored[name] = tensor
    return stored


def _matched(wanted: dict[str, torch.Tensor], stored: dict[str, Tensor],
             names: Names) -> tuple[dict[str, Tensor], list[str]]:
    """What is stored of what is wanted, and the names of what else there is."""
    prefix = ""
    if names is None:
        prefix = max(_PREFIXES, key=lambda front: sum(front + name in stored for name in wanted))
        named = {name: prefix + name for name in wanted}
    elif callable(names):
        named = {name: names(name) for name in wanted}
    else:
        named = {name: names.get(name, name) for name in wanted}
    found = {name: stored[key] for name, key in named.items() if key in stored}
    used = set(named.values())
    return found, [key for key in stored if key.startswith(prefix) and key not in used]


def _check(name: str, target: torch.Tensor, tensor: Tensor) -> None:
    if tuple(target.shape) != tensor.shape:
        raise InvalidArgumentError(f"{name}: the model has it in shape {list(target.shape)}, the "
                                   f"checkpoint in {list(tensor.shape)}", key=name)
    if target.is_meta:
        raise UnsupportedError(f"{name}: it is on the meta device", key=name,
                               hint='model.to_empty(device="cpu") gives it memory')


def _load(name: str, target: torch.Tensor, tensor: Tensor) -> None:
    if hasattr(target, "to_local"):
        target, tensor = _local(name, target, tensor)
    if not tensor.size:
        return
    is_same = target.dtype == getattr(torch, tensor.dtype)
    if is_same and target.device.type == "cpu" and target.is_contiguous():
        tensor.read_into(target.detach().view(-1).view(torch.uint8).numpy())
    else:
        _copy(target, tensor)


def _copy(target: torch.Tensor, tensor: Tensor) -> None:
    """By parts of at most _SLAB_BYTES, or of one element in each dimension."""
    if tensor.nbytes <= _SLAB_BYTES or not tensor.shape:
        target.copy_(tensor.torch())
        return
    rows = max(1, _SLAB_BYTES * len(tensor) // tensor.nbytes)
    for first in range(0, len(tensor), rows):
        part, source = target[first:first + rows], tensor[first:first + rows]
        if rows == 1:
            part, source = part[0], source[0]
        _copy(part, source)


def _local(name: str, target: Any, tensor: Tensor) -> tuple[torch.Tensor, Tensor]:
    """The memory of a DTensor's part, and that part of what is stored."""
    if any(placement.is_partial() for placement in target.placements):
        raise UnsupportedError(f"{name}: it is a partial DTensor: ranks hold summands", key=name)
    local: torch.Tensor = target.to_local()
    chunks = target.__create_chunk_list__()
    if len(chunks) > 1:
        raise UnsupportedError(f"{name}: this rank holds several parts of the DTensor", key=name)
    if not local.numel() or not chunks:
        return local, tensor[:0] if tensor.shape else tensor
    at = tuple(slice(start, start + size)
               for start, size in zip(chunks[0].offsets, chunks[0].sizes))
    return local, tensor[at]

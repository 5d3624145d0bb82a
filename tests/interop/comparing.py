"""Compares value trees bit for bit: types, order, attributes, and the bytes of every tensor."""

from __future__ import annotations

import argparse
import collections
import enum
import hashlib
from collections.abc import Iterator

import numpy
import torch

# args that formats.md ("What exists on one side only") allows to differ between the two formats.
CONVERSION_MAY_CHANGE = frozenset({"/args/@save", "/args/@ckpt_format", "/args/@use_dist_ckpt"})
# torch_dist cannot hold it, Megatron does not need it.
LOST_IN_TORCH_DIST = frozenset({"/model/@_metadata"})


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Contiguous row-major little-endian bytes; works for the types numpy does not know."""
    # Not contiguous(): it keeps any stride of a dimension of size 1.
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def exact(value: object) -> object:
    """Equal where types, keys, their order and the elements of tensors are."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), bytes_of(value), value.requires_grad
    if isinstance(value, dict):
        attributes = exact(vars(value)) if hasattr(value, "__dict__") else None
        factory = getattr(value, "default_factory", None)
        items = [(exact(key), exact(item)) for key, item in value.items()]
        return type(value).__name__, factory, attributes, items
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(item) for item in value]
    return type(value).__name__, repr(value)


def sha256_of(tensor: torch.Tensor) -> str:
    return hashlib.sha256(bytes_of(tensor)).hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def described(tensor: torch.Tensor) -> tuple:
    """All that must be equal besides the bytes."""
    return (
        type(tensor).__name__,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride() if tensor.numel() else None,
        tensor.requires_grad,
    )


def attributes(value: object) -> dict:
    return getattr(value, "__dict__", {})


def differences(
    ours: object, theirs: object, ignored: frozenset[str] = frozenset(), path: str = ""
) -> list[str]:
    """What differs, one line each: "pointer: ours | theirs"; an attribute's name follows "@"."""
    if path in ignored:
        return []
    if type(ours) is not type(theirs):
        return [f"{path}: type {type(ours).__name__} | {type(theirs).__name__}"]
    if isinstance(ours, torch.Tensor):
        return tensor_differences(ours, theirs, ignored, path)
    if isinstance(ours, numpy.ndarray):
        same = ours.dtype == theirs.dtype and numpy.array_equal(ours, theirs)
        return [] if same else [f"{path}: array {ours} | {theirs}"]
    if isinstance(ours, dict):
        found = dict_differences(ours, theirs, ignored, path)
        return found + dict_differences(attributes(ours), attributes(theirs), ignored, path, "@")
    if isinstance(ours, (list, tuple, collections.deque)):
        return sequence_differences(ours, theirs, ignored, path)
    if isinstance(ours, argparse.Namespace):
        return dict_differences(vars(ours), vars(theirs), ignored, path, "@")
    if isinstance(ours, (set, frozenset, enum.Enum)) or ours == theirs:
        return [] if ours == theirs else [f"{path}: {ours!r} | {theirs!r}"]
    both_nan = isinstance(ours, float) and ours != ours and theirs != theirs
    return [] if both_nan else [f"{path}: {ours!r} | {theirs!r}"]


def tensor_differences(ours, theirs, ignored: frozenset[str], path: str) -> list[str]:
    if described(ours) != described(theirs):
        return [f"{path}: {described(ours)} | {described(theirs)}"]
    if bytes_of(ours) != bytes_of(theirs):
        return [f"{path}: {first_difference(ours, theirs)}"]
    # The order of attributes has no meaning, in memory or to Megatron.
    ours_sorted, theirs_sorted = (dict(sorted(attributes(t).items())) for t in (ours, theirs))
    return dict_differences(ours_sorted, theirs_sorted, ignored, path, "@")


def first_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """Where two tensors of one type and shape differ first, and how often."""
    width = ours.element_size()
    mine, other = (
        torch.frombuffer(bytearray(bytes_of(tensor)), dtype=torch.uint8).reshape(-1, width)
        for tensor in (ours, theirs)
    )
    places = (mine != other).any(dim=1).nonzero().flatten().tolist()
    at, values = places[0], (ours.flatten()[places[0]], theirs.flatten()[places[0]])
    return f"{len(places)} of {len(mine)} elements, [{at}] {values[0]} | {values[1]}"


def dict_differences(
    ours: dict, theirs: dict, ignored: frozenset[str], path: str, mark: str = ""
) -> list[str]:
    def kept(entries: dict) -> list:
        return [key for key in entries if f"{path}/{mark}{key}" not in ignored]

    if kept(ours) != kept(theirs):
        only_ours = [key for key in kept(ours) if key not in theirs]
        only_theirs = [key for key in kept(theirs) if key not in ours]
        what = f"{only_ours} | {only_theirs}" if only_ours or only_theirs else "other order"
        return [f"{path}: keys {what}"]
    return [
        line
        for key in kept(ours)
        for line in differences(ours[key], theirs[key], ignored, f"{path}/{mark}{key}")
    ]


def sequence_differences(ours, theirs, ignored: frozenset[str], path: str) -> list[str]:
    if len(ours) != len(theirs):
        return [f"{path}: length {len(ours)} | {len(theirs)}"]
    return [
        line
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True))
        for line in differences(left, right, ignored, f"{path}/{index}")
    ]


def escaped(key: object) -> str:
    """A key as a reference token of an RFC 6901 JSON pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(JSON pointer, tensor) of every tensor in a tree, attributes as "@name"."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}/{escaped(key)}")
    elif isinstance(value, (list, tuple, collections.deque)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}/{index}")
    if not isinstance(value, (torch.Tensor, type)):
        for name, item in attributes(value).items():
            yield from tensors_in(item, f"{path}/@{escaped(name)}")


def with_text_as_keys(tree: object) -> object:
    """What PyTorch makes of a folder that we wrote; ours has the types of keys, too."""
    if isinstance(tree, dict):
        return {str(key): with_text_as_keys(value) for key, value in tree.items()}
    if type(tree) is list:
        return [with_text_as_keys(value) for value in tree]
    return tree

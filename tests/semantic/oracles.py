"""What PyTorch reads: expectations that none of our code takes part in."""

from __future__ import annotations

import collections
import math
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, load
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.storage import _dtype_to_storage_type_map

from comparing import dtype_name, sha256_of, tensors_in

ELEMENTS_MAX = 1 << 22  # of one tensor: mutated sizes reach 2**62

# What ckpt-inspect and we call a tensor's content: element type, shape, SHA-256 of its bytes.
Content = tuple[str, tuple[int, ...], str]
Contents = dict[str, Counter[Content]]  # by JSON pointer, or by the key of a DCP folder


class Unreadable(Exception):
    """PyTorch does not read it."""


class TooLarge(Exception):
    """Expanding a tensor would take more memory than a test should."""


def read_torch_save(path: Path) -> object:
    """As the restricted unpickler reads it, or the full one where a name is not on its list."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        value = torch.load(path, map_location="cpu", weights_only=False)
    name_keys(value, set())
    return value


@dataclass(frozen=True, eq=False)
class NamedKey:
    """A key whose text is not in the file: an address in memory, or numbers of a tensor."""

    text: str

    def __repr__(self) -> str:
        return self.text


def name_keys(value: object, seen: set[int]) -> None:
    """Gives functions, classes of storages and tensors among the keys the names that the pickle
    has for them."""
    if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        named = [(stored_name(key), item) for key, item in value.items()]
        if any(isinstance(key, NamedKey) for key, _ in named):
            value.clear()
            for key, item in named:
                value[key] = item
    for item in value.values() if isinstance(value, dict) else value:
        name_keys(item, seen)
    for attribute in getattr(value, "__dict__", {}).values():
        name_keys(attribute, seen)


def stored_name(key: object) -> object:
    if isinstance(key, torch.Tensor):
        view = (key.storage_offset(), tuple(key.shape), key.stride(), key.requires_grad)
        arguments = ", ".join(["<key>", *map(repr, view), "<collections.OrderedDict()>"])
        return NamedKey(f"<torch._utils._rebuild_tensor_v2({arguments})>")
    if isinstance(key, torch.serialization.StorageType):  # the restricted unpickler's own
        storage = _dtype_to_storage_type_map()[key.dtype]
        return NamedKey(f"<class 'torch.{storage}'>")
    if type(key) is tuple:
        parts = tuple(map(stored_name, key))
        return NamedKey(repr(parts)) if any(isinstance(p, NamedKey) for p in parts) else key
    if isinstance(key, types.FunctionType):
        return NamedKey(f"<class '{key.__module__}.{key.__qualname__}'>")
    return key


def read_dcp_nested(folder: Path) -> dict:
    """The state dict as it was nested before it was saved; needs planner_data."""
    state: dict = {}
    planner = _EmptyStateDictLoadPlanner()
    try:
        _load_state_dict(state, FileSystemReader(folder), planner=planner, no_dist=True)
    except CheckpointException as problem:  # no Exception: it would end the worker
        raise Unreadable(str(problem)) from problem
    return state


def read_dcp_flat(folder: Path) -> dict[str, object]:
    """Tensors and objects by their keys in .metadata."""
    reader = FileSystemReader(folder)
    entries = reader.read_metadata().state_dict_metadata
    state: dict = {}
    for key, entry in entries.items():
        if not isinstance(entry, TensorStorageMetadata):
            state[key] = None
            continue
        if math.prod(entry.size) > ELEMENTS_MAX:
            raise TooLarge(key)
        state[key] = torch.zeros(entry.size, dtype=entry.properties.dtype)
    try:
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    except CheckpointException as problem:
        raise Unreadable(str(problem)) from problem
    return state


def requires_grad_in(folder: Path) -> dict[str, bool]:
    """PyTorch does not give it back, but keeps it in .metadata."""
    metadata: Metadata = FileSystemReader(folder).read_metadata()
    return {
        key: entry.properties.requires_grad
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def content(tensor: torch.Tensor) -> Content:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.numel() > ELEMENTS_MAX:
        raise TooLarge(str(tensor.shape))
    return dtype_name(tensor.dtype), tuple(tensor.shape), sha256_of(tensor)


def contents(value: object) -> Contents:
    found: Contents = collections.defaultdict(Counter)
    for path, tensor in tensors_in(value):
        found[path][content(tensor)] += 1
    return dict(found)


def contents_of_hash(listing: dict) -> Contents:
    """The same of the output of `ckpt-inspect hash --json`."""
    found: Contents = collections.defaultdict(Counter)
    for tensor in listing["tensors"]:
        found[tensor["key"]][tensor["dtype"], tuple(tensor["shape"]), tensor["sha256"]] += 1
    return dict(found)

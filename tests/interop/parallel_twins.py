"""Whether a resharded checkpoint is the one that Megatron wrote at those sizes, file by file. A
difference is a line "FILE POINTER: ours | Megatron's"."""

from __future__ import annotations

from pathlib import Path

import torch

from comparing import bytes_of, differences, tensors_in
from parallel_sets import first_difference
from reading import DcpFolder, iteration_folder, load_torch_folder
from twins import root_differences

# Of another run, and not of another size.
OF_THE_RUN = frozenset({"/args/@save", "/args/@load"})
# test_parallel_rng.py computes these; in the sets they are a CPU's.
RNG_OF_DEVICES = frozenset({"/rng_state/0/torch_rng_state", "/rng_state/0/cuda_rng_state"})


def differences_from_set(ours: Path, theirs: Path, with_values: bool) -> list[str]:
    """Two checkpoint roots. Not `with_values`: sums of gradients had another order, so that tensors
    have other numbers."""
    is_dist = (iteration_folder(theirs) / ".metadata").exists()
    compare = torch_dist_differences if is_dist else torch_differences
    return compare(ours, theirs, with_values) + root_differences(ours, theirs)


def erase_numbers(tree: object) -> None:
    for _, tensor in tensors_in(tree):
        if tensor.is_floating_point():
            tensor.data.zero_()


def torch_differences(ours: Path, theirs: Path, with_values: bool) -> list[str]:
    mine, others = load_torch_folder(ours), load_torch_folder(theirs)
    if list(mine) != list(others):
        return [f"files {sorted(set(mine) - set(others))} | {sorted(set(others) - set(mine))}"]
    if not with_values:
        for tree in (*mine.values(), *others.values()):
            erase_numbers(tree)
    return [
        f"{name} {line}"
        for name in others
        for line in differences(mine[name], others[name], OF_THE_RUN | RNG_OF_DEVICES)
    ]


def torch_dist_differences(ours: Path, theirs: Path, with_values: bool) -> list[str]:
    mine, others = DcpFolder(iteration_folder(ours)), DcpFolder(iteration_folder(theirs))
    found = differences(mine.common, others.common, OF_THE_RUN, "")
    found = [f"common.pt {line}" for line in found]
    keys, their_keys = mine.metadata.state_dict_metadata, others.metadata.state_dict_metadata
    if set(keys) != set(their_keys):
        only_mine, only_theirs = set(keys) - set(their_keys), set(their_keys) - set(keys)
        return [*found, f".metadata: keys {sorted(only_mine)} | {sorted(only_theirs)}"]
    for key in others.tensors():
        found += tensor_differences(mine, others, key, with_values)
    for key in others.objects():
        found += object_differences(mine, others, key)
    return found + folder_differences(mine, others)


def folder_differences(mine: DcpFolder, others: DcpFolder) -> list[str]:
    planned, theirs = (folder.metadata.planner_data for folder in (mine, others))
    found = differences(planned, theirs, path=".metadata planner_data")
    if mine.metadata.version != others.metadata.version:
        found.append(f".metadata version: {mine.metadata.version} | {others.metadata.version}")
    read, expected = ((f.folder / "metadata.json").read_text() for f in (mine, others))
    if read != expected:
        found.append(f"metadata.json: {read} | {expected}")
    known = {".metadata", "common.pt", "metadata.json"}
    names = {path.name for path in mine.folder.iterdir()} - known
    return found + [f"file {name}: not expected" for name in sorted(names)
                    if not name.endswith(".distcp") and name != "shardwise-proof.json"]


def tensor_differences(
    mine: DcpFolder, others: DcpFolder, key: str, with_values: bool
) -> list[str]:
    entry, theirs = mine.tensors().get(key), others.tensors()[key]
    if entry is None:
        return [f"{key}: object | tensor"]
    if (entry.size, entry.properties) != (theirs.size, theirs.properties):
        return [f"{key}: {entry.size} {entry.properties} | {theirs.size} {theirs.properties}"]
    boxes, their_boxes = (
        sorted((tuple(c.offsets), tuple(c.sizes)) for c in e.chunks) for e in (entry, theirs)
    )
    if boxes != their_boxes:
        return [f"{key}: chunks {boxes} | {their_boxes}"]
    if not with_values:
        return []
    chunks, their_chunks = mine.chunks(key), others.chunks(key)
    return [
        f"{key} {box}: {first_difference(chunks[box], chunk)}"
        for box, chunk in their_chunks.items()
        if bytes_of(chunks[box]) != bytes_of(chunk)
    ]


def object_differences(mine: DcpFolder, others: DcpFolder, key: str) -> list[str]:
    ignored = frozenset()
    if key.startswith("rng_state/"):
        ignored = frozenset(key + pointer.removeprefix("/rng_state") for pointer in RNG_OF_DEVICES)
    return differences(mine.object(key), others.object(key), ignored, key)


def files_of_optimizer_chunks(root: Path) -> dict[tuple, str]:
    """(key, offsets) -> the rank in whose file the chunk lies."""
    return {
        (index.fqn, tuple(index.offset)): place.relative_path.split("_")[2]
        for index, place in DcpFolder(iteration_folder(root)).metadata.storage_data.items()
        if index.fqn.startswith("optimizer.") and index.offset is not None
    }


def is_equal_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        bytes_of(one[name]) == bytes_of(other[name]) for name in one
    )

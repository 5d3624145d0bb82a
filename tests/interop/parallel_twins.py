"""Whether a resharded checkpoint is the one that Megatron wrote at those sizes, file by file. A
difference is a line "FILE POINTER: ours | Megatron's"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from comparing import bytes_of, differences, first_difference, tensors_in
from reading import DcpFolder, iteration_folder, load_torch_folder
from twins import root_differences

# Since core 0.19 in the store, compared as the common state.
COMMON_STATE = "common_state/shard_0_1"
# Of another run, and not of another size.
OF_THE_RUN = frozenset({"/args/@save", "/args/@load"})
# Of a torch.nn.Module; Megatron does not read them.
NAMES_OF_MODULES = frozenset(f"/model{chunk}/@_metadata" for chunk in ("", *range(8)))
# test_parallel_rng.py computes these; in the sets they are a CPU's.
RNG_OF_DEVICES = frozenset(
    f"/rng_state{at}/{device}_rng_state" for at in ("/0", "/0/0") for device in ("torch", "cuda")
)


@dataclass(frozen=True)
class Twins:
    """Two checkpoint roots of one layout. Not `with_values`: sums of gradients had another order,
    so that tensors have other numbers."""

    ours: Path
    theirs: Path
    with_values: bool = True
    with_attributes: bool = True
    ignored: frozenset[str] = frozenset()
    without_keys: tuple[str, ...] = ()  # how keys begin that are not compared

    def compared(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if not key.startswith(self.without_keys)}

    def differences(self) -> list[str]:
        is_dist = (iteration_folder(self.theirs) / ".metadata").exists()
        found = torch_dist_differences(self) if is_dist else torch_differences(self)
        return found + root_differences(self.ours, self.theirs)

    def of_trees(self, mine: object, others: object, path: str = "") -> list[str]:
        return differences(mine, others, OF_THE_RUN | RNG_OF_DEVICES | self.ignored, path)


def erase(tree: object, twins: Twins) -> None:
    """Of the tensors in a tree, what is not to be compared."""
    for _, tensor in tensors_in(tree):
        if not twins.with_values and tensor.is_floating_point():
            tensor.data.zero_()
        if not twins.with_attributes:
            vars(tensor).clear()


def torch_differences(twins: Twins) -> list[str]:
    mine, others = load_torch_folder(twins.ours), load_torch_folder(twins.theirs)
    if list(mine) != list(others):
        return [f"files {sorted(set(mine) - set(others))} | {sorted(set(others) - set(mine))}"]
    for tree in (*mine.values(), *others.values()):
        erase(tree, twins)
    return [
        f"{name} {line}"
        for name in others
        for line in twins.of_trees(mine[name], others[name])
    ]


def torch_dist_differences(twins: Twins) -> list[str]:
    mine, others = (DcpFolder(iteration_folder(root)) for root in (twins.ours, twins.theirs))
    found = [f"common.pt {line}" for line in twins.of_trees(mine.common, others.common)]
    keys, their_keys = mine.metadata.state_dict_metadata, others.metadata.state_dict_metadata
    keys, their_keys = twins.compared(keys), twins.compared(their_keys)
    if keys != their_keys:
        only_mine, only_theirs = keys - their_keys, their_keys - keys
        return [*found, f".metadata: keys {sorted(only_mine)} | {sorted(only_theirs)}"]
    for key in others.tensors():
        found += tensor_differences(mine, others, key, twins.with_values)
    for key in twins.compared(others.objects()) - {COMMON_STATE}:
        found += object_differences(twins, mine, others, key)
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
                    if not name.endswith(".distcp")]


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
        if not is_gap(key, chunks[box]) and bytes_of(chunks[box]) != bytes_of(chunk)
    ]


def is_gap(key: str, chunk: torch.Tensor) -> bool:
    """Between parameters of a flat bucket: we write zeros, Megatron memory that nobody wrote. That
    no parameter becomes zeros, the logical tensors show."""
    return ".bucket_idx_" in key and not chunk.any()


def object_differences(twins: Twins, mine: DcpFolder, others: DcpFolder, key: str) -> list[str]:
    tree, theirs = mine.object(key), others.object(key)
    if not key.startswith("rng_state/"):
        return twins.of_trees(tree, theirs, key)
    found = twins.of_trees({"rng_state": tree}, {"rng_state": theirs})
    return [f"{key}: {line}" for line in found]


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

"""What "the same checkpoint" means, file by file, between what we write and what Megatron wrote."""

from __future__ import annotations

from pathlib import Path

from comparing import CONVERSION_MAY_CHANGE, LOST_IN_TORCH_DIST, differences
from reading import DcpFolder, dcp_differences, iteration_folder, load_torch_folder

TRACKER = "latest_checkpointed_iteration.txt"
PROOF = "shardwise-proof.json"  # ours alone (docs/formats/proof.md)


def file_names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def torch_differences(ours: Path, theirs: Path, through_torch_dist: bool) -> list[str]:
    """Every object of every file, in order. `through_torch_dist`: `_metadata` of the model dict was
    lost on the way, as it has no place there."""
    ignored = CONVERSION_MAY_CHANGE | (LOST_IN_TORCH_DIST if through_torch_dist else frozenset())
    mine, others = load_torch_folder(ours), load_torch_folder(theirs)
    if set(mine) != set(others):
        return [f"files {sorted(set(mine) - set(others))} | {sorted(set(others) - set(mine))}"]
    found = [
        f"{name} {line}"
        for name in others
        for line in differences(mine[name], others[name], ignored)
    ]
    return found + root_differences(ours, theirs)


def torch_dist_differences(ours: Path, theirs: Path) -> list[str]:
    """Keys, shapes, chunks, bytes, objects, common state; not where in which file a chunk lies."""
    mine, others = DcpFolder(iteration_folder(ours)), DcpFolder(iteration_folder(theirs))
    found = dcp_differences(mine, others)
    found += differences(mine.common, others.common, CONVERSION_MAY_CHANGE, "")
    written, read = (folder.folder / "metadata.json" for folder in (mine, others))
    if written.read_bytes() != read.read_bytes():
        found.append(f"metadata.json: {written.read_text()} | {read.read_text()}")
    unexplained = {
        name
        for name in file_names(mine.folder)
        if not name.endswith(".distcp") and name not in (".metadata", "common.pt", "metadata.json")
    }
    found += [f"unexpected file {name}" for name in sorted(unexplained)]
    return found + root_differences(ours, theirs)


def root_differences(ours: Path, theirs: Path) -> list[str]:
    mine, others = ((root / TRACKER).read_bytes() for root in (ours, theirs))
    found = [] if mine == others else [f"tracker: {mine!r} | {others!r}"]
    entries = {path.name for path in ours.iterdir()} - {PROOF}
    if entries != {TRACKER, iteration_folder(theirs).name}:
        found.append(f"in the root: {sorted(entries)}")
    return found


def twin_differences(ours: Path, theirs: Path, through_torch_dist: bool = True) -> list[str]:
    if (iteration_folder(theirs) / ".metadata").exists():
        return torch_dist_differences(ours, theirs)
    return torch_differences(ours, theirs, through_torch_dist)

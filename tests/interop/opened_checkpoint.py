"""All that the files of a Megatron checkpoint say, loaded, to be changed in place and saved again:
tensors by kind and owner, groups, common states. one_fact.py changes one fact of it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from damage import edit_entries
from reading import iteration_folder, load

KINDS = ("param", "fp32_param", "exp_avg", "exp_avg_sq", "momentum_buffer")
MASTERS = ("param", "fp32_param")
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass
class Slot:
    """A tensor and where it is kept."""

    holder: object  # a mapping or a list
    key: object
    kind: str  # weight, or one of KINDS
    owner: tuple  # what its parameter, or its buffer, is known by
    file: str

    @property
    def tensor(self) -> torch.Tensor:
        return self.holder[self.key]

    def put(self, tensor: torch.Tensor) -> None:
        self.holder[self.key] = tensor


@dataclass
class Opened:
    """All that a checkpoint's files say, loaded; what is changed is saved by save()."""

    root: Path
    trees: dict = field(default_factory=dict)  # by the name of the file
    entries: dict = field(default_factory=dict)  # of torch_dist, by index
    gone: set = field(default_factory=set)  # indices

    def save(self) -> None:
        for name, tree in self.trees.items():
            torch.save(tree, iteration_folder(self.root) / name)
        if self.entries:
            edit_entries(lambda index, value: self.entries.get(index, value))(self.root)
        if self.gone:
            path = iteration_folder(self.root) / ".metadata"
            metadata = pickle.loads(path.read_bytes())
            for index in self.gone:
                del metadata.storage_data[index]
                metadata.state_dict_metadata.pop(index.fqn, None)
            path.write_bytes(pickle.dumps(metadata, protocol=4))

    def places(self) -> list[tuple[str, object]]:
        """Trees of files and of objects."""
        objects = [(i.fqn, v) for i, v in self.entries.items() if not torch.is_tensor(v)]
        return [*self.trees.items(), *objects]

    def commons(self) -> list[dict]:
        return [common for _, tree in self.places() if (common := common_of(tree))]

    def keep_commons(self) -> None:
        """Lets go of all but common states, so that save() leaves the rest alone."""
        self.trees = {name: tree for name, tree in self.trees.items() if common_of(tree)}
        self.entries = {index: value for index, value in self.entries.items() if common_of(value)}

    def optimizers(self) -> list[tuple[str, dict]]:
        """Each dict that has groups, once, with the place where it stands."""
        found = {}
        for name, tree in self.places():
            for one in with_groups(tree):
                found.setdefault(id(one), (name, one))
        return list(found.values())

    def slots(self) -> list[Slot]:
        found = {}
        for name, tree in self.trees.items():
            for slot in slots_in(tree, name, ()):
                found.setdefault((id(slot.holder), slot.key), slot)
        for index, value in self.entries.items():
            if torch.is_tensor(value) and not is_gap(index):
                found[index] = slot_of_entry(self.entries, index)
        return list(found.values())


def opened(root: Path) -> Opened:
    folder = iteration_folder(root)
    made = Opened(root)
    for path in sorted([*folder.glob("mp_rank_*/*.pt"), *folder.glob("common.pt")]):
        made.trees[str(path.relative_to(folder))] = load(path)
    for name, tree in made.trees.items():  # model files repeat the first rank's state
        ranks = sorted(n for n in made.trees if n.startswith(name.split("/")[0] + "/layer_wise_"))
        if name.endswith("model_optim_rng.pt") and ranks and "optimizer" in tree:
            tree["optimizer"] = made.trees[ranks[0]]
    if (folder / ".metadata").exists():
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        for index, place in metadata.storage_data.items():
            with open(folder / place.relative_path, "rb") as file:
                file.seek(place.offset)
                content = io.BytesIO(file.read(place.length))
            made.entries[index] = torch.load(content, weights_only=False)
    return made


def common_of(tree: object) -> dict | None:
    found = tree[0] if isinstance(tree, list) and tree else tree
    return found if isinstance(found, dict) and "args" in found else None


def with_groups(tree: object) -> Iterator[dict]:
    if isinstance(tree, dict):
        if isinstance(tree.get("param_groups"), list):
            yield tree
        for key, value in tree.items():
            if not str(key).startswith("model"):
                yield from with_groups(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from with_groups(value)


def slots_in(tree: object, file: str, at: tuple) -> Iterator[Slot]:
    if isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from slots_in(value, file, (*at, number))
    elif isinstance(tree, dict):
        if isinstance(masters := tree.get("fp32_from_fp16_params"), list):
            numbered = [(one, place) for one in masters for place in range(len(one))]
            for number, (group, place) in enumerate(numbered):
                yield Slot(group, place, "fp32_param", (file, *at, number), file)
        for key, value in tree.items():
            if isinstance(key, str) and key.startswith("model"):
                yield from (Slot(value, name, "weight", (file, name), file)
                            for name, one in value.items() if torch.is_tensor(one))
            elif torch.is_tensor(value) and key in KINDS:
                owner = tuple(step for step in at if step not in ("optimizer", "state"))
                yield Slot(tree, key, key, (file, *owner), file)
            elif key not in ("args", "fp32_from_fp16_params", "rng_state"):
                yield from slots_in(value, file, (*at, key))


def is_gap(index: object) -> bool:
    """What lies between parameters, which begin at multiples of 64, means nothing."""
    return ".gbuf_idx_" in index.fqn and index.offset[0] % 64 != 0


def slot_of_entry(entries: dict, index: object) -> Slot:
    parts = index.fqn.split(".")
    kind = next((part for part in (parts[-1], *parts[2:3]) if part in KINDS), "weight")
    if "optimizer" not in parts[:2]:
        kind = "weight"
    owner = index.fqn.replace(f"optimizer.state.{kind}.", "").removesuffix(f".{kind}")
    return Slot(entries, index, kind, (owner, tuple(index.offset)), "")

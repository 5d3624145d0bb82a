"""What is not carried has a name of its own, whatever its neighbours are called."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

from comparing import tensors_in
from programs import succeed
from reading import load


def typed() -> defaultdict:
    return defaultdict(int, {"w": torch.ones(2)})


# Neighbours of which one is named as the other's name is escaped, or as a note about it begins.
NAMES_LIKE_OTHERS = {
    "slash": ({"r": [{"/": {}, "~1": typed()}]}, {"/r/0/~01"}, {"/r/0/~1"}),
    "tilde": ({"r": [{"~": {}, "~0": typed()}]}, {"/r/0/~00"}, {"/r/0/~0"}),
    "step": ({"a": {"b": {}}, "a/b": typed()}, {"/a~1b"}, {"/a/b"}),
    "number": ({"~1": {1: {}}, "/": {"1": typed()}}, {"key /~01/1", "/~1/1"}, {"/~01/1"}),
    "note": ({"attributes of a": {}, "/a": {}, "a": typed()}, {"/a"}, {"/attributes of a", "/~1a"}),
}


@pytest.mark.parametrize("name", NAMES_LIKE_OTHERS)
def test_a_loss_is_not_taken_for_its_neighbours(name: str, tmp_path: Path) -> None:
    """Of the empty mapping and of the class that a file keeps, and a folder does not."""
    state, flattened, empty = NAMES_LIKE_OTHERS[name]
    source = tmp_path / "source.pt"
    torch.save(state, source)
    for target, lost in {"torch": set(), "torch_dist": flattened | empty}.items():
        made = tmp_path / target
        notes = succeed("ckpt-convert", source, made, "--to", target, "--verify", "--json").json()
        assert {note["what"] for note in notes["not_carried"]} == lost
    made = load(tmp_path / "torch")
    assert len(list(tensors_in(made))) == len(list(tensors_in(state))) == 1
    assert empty_mappings(made) == empty_mappings(state) != 0


def empty_mappings(value: object) -> int:
    if isinstance(value, list):
        return sum(map(empty_mappings, value))
    if not isinstance(value, dict):
        return 0
    return 1 if not value else sum(map(empty_mappings, value.values()))

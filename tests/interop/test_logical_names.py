"""One plain state dict in three formats: the same names, the same logical hash, no difference."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from programs import hash_of, logical_digest, run, succeed

EQUAL, DIFFERENT = 0, 1


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def save_flat(state: dict, path: Path) -> Path:
    """The tensors of a state dict under the names that PyTorch flattens them to."""
    flat, _ = flatten_state_dict(state)
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, path)
    return path


def save_all(state: dict, folder: Path) -> list[Path]:
    torch.save(state, folder / "model.pt")
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    return [folder / "model.pt", folder / "dcp", save_flat(state, folder / "model.safetensors")]


STATES = {
    "flat": lambda: model().state_dict(),
    "nested": lambda: {"state_dict": model().state_dict()},
    "lists": lambda: {"a": [torch.ones(2), {"x": torch.zeros(3)}, [torch.ones(1)]]},
    "numbers": lambda: {3: torch.ones(2), "m": {0: torch.zeros(2), 1: torch.ones(2)}},
    "slashes and tildes": lambda: {"a/b": {"~1": torch.ones(2)}, "c~0": torch.zeros(1)},
    "dots": lambda: {"a.b": {"c.d": torch.ones(2)}, "a.": {"x": torch.zeros(1)}},
    "no tensor": lambda: {},
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_dict_is_equal_in_every_format(name: str, tmp_path: Path) -> None:
    paths = save_all(STATES[name](), tmp_path)
    assert len({logical_digest(path) for path in paths}) == 1, name
    for a in paths:
        for b in paths:
            assert run("ckpt-inspect", "diff", a, b).code == EQUAL, (a, b)


def test_names_are_those_that_convert_writes(tmp_path: Path) -> None:
    torch.save({"state_dict": model().state_dict()}, tmp_path / "model.pt")
    for to, made in (("safetensors", "model.safetensors"), ("torch_dist", "dcp")):
        succeed("ckpt-convert", tmp_path / "model.pt", tmp_path / made, "--to", to)
        listed = {tensor["key"] for tensor in hash_of(tmp_path / made)["tensors"]}
        named = {t["key"] for t in hash_of(tmp_path / "model.pt", "--logical")["tensors"]}
        assert named == listed == {f"state_dict.{key}" for key in model().state_dict()}


def test_one_changed_element_is_found_across_formats(tmp_path: Path) -> None:
    state = {"state_dict": model().state_dict()}
    torch.save(state, tmp_path / "model.pt")
    state["state_dict"]["2.bias"][1] += 1
    changed = save_flat(state, tmp_path / "changed.safetensors")
    outcome = run("ckpt-inspect", "diff", tmp_path / "model.pt", changed, "--json")
    assert outcome.code == DIFFERENT
    (found,) = outcome.json()["tensors"]["different"]
    assert (found["key"], found["kind"]) == ("state_dict.2.bias", "value")
    assert found["value"]["first_index"] == [1]
    assert logical_digest(tmp_path / "model.pt") != logical_digest(changed)


def test_what_safetensors_cannot_hold_is_a_difference_with_a_name(tmp_path: Path) -> None:
    state = {"model": model().state_dict(), "epoch": 3, "args": {"lr": 0.1, "betas": (0.9, 0.99)}}
    file, folder, flat = save_all(state, tmp_path)
    assert run("ckpt-inspect", "diff", file, folder).code == EQUAL
    for source in (file, folder):
        outcome = run("ckpt-inspect", "diff", source, flat, "--json")
        assert outcome.code == DIFFERENT
        assert outcome.json()["tensors"]["different"] == []
        names = [found["key"] for found in outcome.json()["objects"]["different"]]
        assert names == ["args.betas", "args.lr", "epoch"]
    assert logical_digest(file) == logical_digest(folder) != logical_digest(flat)


ONE, TWO = torch.ones(2), torch.zeros(2)
SHARED_NAMES = {
    "nested and dotted": {"a": {"b": ONE}, "a.b": TWO},
    "list and dotted": {"a": [ONE], "a.0": TWO},
    "number and text": {1: ONE, "1": TWO},
    "tensor and object": {"a": {"b": ONE}, "a.b": "text"},
    "no name": {"": ONE},
    "begins as a place": {"": {"b": ONE}, "/a": TWO, "c": {"d": ONE}},
}


@pytest.mark.parametrize("name", SHARED_NAMES)
def test_places_that_share_a_name_are_compared_as_places(name: str, tmp_path: Path) -> None:
    """No flat file equals one of these: it could only hold one of two, or other names."""
    torch.save(SHARED_NAMES[name], tmp_path / "shared.pt")
    outcome = run("ckpt-inspect", "hash", tmp_path / "shared.pt", "--logical")
    if name != "number and text":  # 1 and '1': the text is quoted
        assert "warning: its places have no names in other formats" in outcome.stderr, outcome
    others = [{"a.b": ONE}, {"a.b": TWO}, {"1": ONE}, {"1": TWO}, {"/a/b": ONE, "/a.b": TWO}]
    for number, state in enumerate([*others, {"/b": ONE, "/a": TWO, "c.d": ONE}]):
        other = tmp_path / f"{number}.safetensors"
        save_file({key: value.clone() for key, value in state.items()}, other)
        assert logical_digest(other) != logical_digest(tmp_path / "shared.pt"), state
        outcome = run("ckpt-inspect", "diff", tmp_path / "shared.pt", other)
        assert outcome.code == DIFFERENT, outcome


def test_two_keys_of_one_text_are_hashed_each(tmp_path: Path) -> None:
    torch.save({1: ONE, "1": TWO}, tmp_path / "a.pt")
    torch.save({1: ONE, "1": ONE}, tmp_path / "b.pt")
    assert logical_digest(tmp_path / "a.pt") != logical_digest(tmp_path / "b.pt")


def random_state(chance: random.Random, depth: int = 0) -> dict:
    """Keys that meet often: what flattens to one name, and what looks like a place."""
    state = {}
    for key in chance.sample(["a", "b", "a.b", "a/b", "/a", "~1", "", ".", 0, "0"], 2):
        if depth < 2 and chance.random() < 0.5:
            state[key] = random_state(chance, depth + 1)
        elif chance.random() < 0.2:
            state[key] = [torch.tensor(chance.randrange(2))]
        else:
            state[key] = torch.tensor(chance.randrange(2))
    return state


def flattened(state: object, name: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Every tensor with its joined name; two may share one."""
    if isinstance(state, torch.Tensor):
        return [(".".join(name), int(state))]
    items = state.items() if isinstance(state, dict) else enumerate(state)
    return [pair for key, value in items for pair in flattened(value, (*name, str(key)))]


def test_random_state_dicts_are_equal_exactly_where_their_tensors_are(tmp_path: Path) -> None:
    chance = random.Random(18)
    digests: dict[str, list] = {}
    for number in range(60):
        state = random_state(chance)
        pairs = sorted(flattened(state))
        names = [name for name, _ in pairs]
        is_named = len(set(names)) == len(names) and all(n and n[0] != "/" for n in names)
        torch.save(state, tmp_path / "state.pt")
        digest = logical_digest(tmp_path / "state.pt")
        meaning = pairs if is_named else describe_places(state)
        assert digests.setdefault(digest, meaning) == meaning
        if len(set(names)) == len(names):
            flat = tmp_path / f"{number}.safetensors"
            save_file({name: torch.tensor(value) for name, value in pairs}, flat)
            is_equal = (is_named or is_flat(state)) and not has_text_like_a_number(state)
            assert (logical_digest(flat) == digest) == is_equal, state
            code = run("ckpt-inspect", "diff", tmp_path / "state.pt", flat).code
            assert code == (EQUAL if is_named or is_flat(state) else DIFFERENT), state
    assert len(digests) > 40


def has_text_like_a_number(state: object) -> bool:
    """Which is quoted where a file says the types of keys; a flat file has texts alone."""
    if not isinstance(state, dict):
        return isinstance(state, list) and any(map(has_text_like_a_number, state))
    return "0" in state or any(map(has_text_like_a_number, state.values()))


def is_flat(state: dict) -> bool:
    return all(isinstance(value, torch.Tensor) for value in state.values())


def describe_places(state: object, place: tuple[str, ...] = ()) -> list:
    if isinstance(state, torch.Tensor):
        return [(place, int(state))]
    items = state.items() if isinstance(state, dict) else enumerate(state)
    return sorted(pair for k, v in items for pair in describe_places(v, (*place, str(k))))

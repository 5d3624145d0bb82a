"""Keys and mappings of plain state dicts keep their types: what torch.load gives of a result is
what it gives of the source."""

from __future__ import annotations

import datetime
import http
import pickle
import signal
import uuid
from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from comparing import exact
from programs import hash_of, refuse, run, succeed
from reading import load

KEYS = {
    "int": 0, "negative": -3, "big": 1 << 80, "text_of_an_int": "0", "bool": True, "None": None,
    "text_of_None": "None", "float": 0.5, "inf": float("inf"), "text_of_a_float": "0.5",
    "bytes": b"k", "tuple": (1, ("a", 2.5)), "empty_tuple": (), "dtype": torch.float32,
    "text_of_a_dtype": "torch.float32", "tuple_of_dtypes": (torch.bfloat16, torch.float32),
    "frozenset": frozenset({1}), "quoted": "'0'",
    "enum": http.HTTPStatus.OK, "signal": signal.SIGTERM, "size": torch.Size([2, 3]),
    "device": torch.device("cpu"), "empty": "", "dotted": "a.b", "class": OrderedDict,
}  # fmt: skip


def attributed(mapping: OrderedDict) -> OrderedDict:
    mapping._metadata = OrderedDict([("", {"version": 2})])
    return mapping


MAPPINGS = {
    "dict": lambda key, value: {key: value},
    "OrderedDict": lambda key, value: OrderedDict([("z", 1), (key, value), ("a", 2)]),
    "attributes": lambda key, value: attributed(OrderedDict([(key, value)])),
    "defaultdict": lambda key, value: defaultdict(list, {key: value}),
    "Counter": lambda key, value: Counter({key: 3, "n": 4}),
    "in_a_list": lambda key, value: [{key: value}, [OrderedDict([(key, value.clone())])]],
    "around": lambda key, value: {key: {"in": {key: value}}},
}
WAYS = {
    "as_it_is": ((), "a"),
    "verified": (("--verify",), "a"),
    "strict": (("--strict", "--verify"), "a"),
    "renamed": (("--rename", "a=moved.there", "--verify"), "moved"),
    "renamed_beside": (("--rename", "other=a.more", "--verify"), None),
    "excluded": (("--exclude", "other*", "--verify"), "a"),
}


@pytest.mark.parametrize("legacy", (False, True), ids=("zip", "legacy"))
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_file_made_of_a_file_keeps_all_keys(mapping: str, legacy: bool, tmp_path: Path) -> None:
    tensor = torch.arange(3.0)
    held = {name: MAPPINGS[mapping](key, tensor.clone()) for name, key in KEYS.items()}
    source = tmp_path / "source.pt"
    state = {"a": held, "other": {"w": torch.ones(1)}}
    torch.save(state, source, _use_new_zipfile_serialization=not legacy)
    for way, (options, place) in WAYS.items():
        made = tmp_path / f"{way}.pt"
        said = succeed("ckpt-convert", source, made, "--to", "torch", *options).stdout
        assert "changed" not in said, said
        wanted = load(source)
        if place == "moved":
            wanted = {"moved": {"there": wanted["a"]}, "other": wanted["other"]}
        if place is None:
            wanted["a"]["more"] = wanted.pop("other")
        if way == "excluded":
            del wanted["other"]
            assert "equal to the source" not in said
        assert exact(load(made)) == exact(wanted), way
        if way in ("as_it_is", "strict"):
            assert hash_of(source, "--logical")["digest"] == hash_of(made, "--logical")["digest"]
            assert run("ckpt-inspect", "diff", source, made).code == 0


@pytest.mark.parametrize("name", KEYS)
def test_types_of_keys_survive_a_folder(name: str, tmp_path: Path) -> None:
    """PyTorch reads their text; we read them back."""
    key = KEYS[name]
    state = {"a": {key: {"x": torch.ones(2), "y": [torch.ones(1), {key: 3}]}}}
    source, folder, back = tmp_path / "source.pt", tmp_path / "dcp", tmp_path / "back.pt"
    torch.save(state, source)
    said = succeed("ckpt-convert", source, folder, "--to", "torch_dist", "--verify").stdout
    is_text = type(key) is str
    assert ("changed:" in said) == (not is_text)
    assert ("equal to the source" in said) == is_text
    assert ("everything was carried" in said) == is_text
    succeed("ckpt-convert", folder, back, "--to", "torch", "--verify", "--strict")
    assert exact(load(back)) == exact(load(source))
    again = tmp_path / "again"
    succeed("ckpt-convert", folder, again, "--to", "torch_dist", "--verify", "--strict")
    digests = {hash_of(path, "--logical")["digest"] for path in (source, folder, back, again)}
    assert len(digests) == 1
    assert run("ckpt-inspect", "diff", source, folder).code == 0
    read = torch.distributed.checkpoint.FileSystemReader(folder).read_metadata()
    assert {type(step) for path in read.planner_data.values() for step in path} <= {str, int}


PAIRS = [
    (0, "0"), (1, True), (1, 1.0), (None, "None"), (0.5, "0.5"), (b"k", "b'k'"), ((1,), "(1,)"),
    ((1,), ("1",)), (torch.float32, "torch.float32"), (frozenset({1}), "frozenset({1})"),
    ("0", "'0'"), (http.HTTPStatus.OK, http.HTTPStatus.FOUND), (float("nan"), "nan"),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)), (Fraction(1, 2), Fraction(1, 3)),
    (uuid.UUID(int=1), uuid.UUID(int=2)), (range(2), range(3)),
    (range(2), "<builtins.range(0, 2, 1)>"),
]  # fmt: skip


@pytest.mark.parametrize("nested", (False, True), ids=("root", "nested"))
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_keys_of_two_types_are_two_states(pair: tuple, nested: bool, tmp_path: Path) -> None:
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for path, key in zip(paths, pair, strict=True):
        torch.save({"s": {key: {"m": torch.ones(2)}}} if nested else {key: torch.ones(2)}, path)
    first, second = (hash_of(path, "--logical")["digest"] for path in paths)
    assert first != second
    assert run("ckpt-inspect", "diff", *paths).code == 1
    for path in paths:
        succeed("ckpt-convert", path, path.with_suffix(""), "--to", "torch_dist")
        assert run("ckpt-inspect", "diff", path, path.with_suffix("")).code == 0
    first, second = (hash_of(path.with_suffix(""), "--logical")["digest"] for path in paths)
    assert first != second


@pytest.mark.parametrize("name", KEYS)
def test_keys_stay_above_a_list_that_loses_an_empty_mapping(name: str, tmp_path: Path) -> None:
    key = KEYS[name]
    source, folder, back = tmp_path / "source.pt", tmp_path / "dcp", tmp_path / "back.pt"
    torch.save({"a": {key: [0, {}]}}, source)
    said = succeed("ckpt-convert", source, folder, "--to", "torch_dist").stdout
    assert "an empty mapping, which DCP does not store" in said
    succeed("ckpt-convert", folder, back, "--to", "torch", "--verify")
    torch.save({"a": {key: [0]}}, source)
    assert exact(load(back)) == exact(load(source))


def test_keys_beside_one_that_no_folder_holds_keep_their_types(tmp_path: Path) -> None:
    """A tensor is none that .metadata holds; the others of its path stay numbers."""
    source, folder, back = tmp_path / "source.pt", tmp_path / "dcp", tmp_path / "back.pt"
    torch.save({"state": {1: {torch.ones(2): 3, "m": 4}}}, source)
    said = succeed("ckpt-convert", source, folder, "--to", "torch_dist", "--verify").stdout
    assert "becomes a string in DCP" in said
    succeed("ckpt-convert", folder, back, "--to", "torch", "--verify")
    state = load(back)["state"]
    assert [type(key) for key in (*state, *state[1])] == [int, str, str]
    assert list(state[1].values()) == [3, 4]


def test_a_folder_that_pytorch_wrote_has_keys_as_text(tmp_path: Path) -> None:
    """Which a state dict of integers has, unless it is another's: '0' is compared as text, and that
    is said."""
    for name, key in (("number", 0), ("text", "0")):
        state = {"s": {key: {"m": torch.ones(2)}}}
        torch.save(state, tmp_path / f"{name}.pt")
        torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / name, no_dist=True)
    names = ("number.pt", "number", "text")
    assert len({hash_of(tmp_path / name, "--logical")["digest"] for name in names}) == 1
    outcome = run("ckpt-inspect", "diff", tmp_path / "text.pt", tmp_path / "text")
    assert outcome.code == 0
    assert "has all keys of mappings as text; their types are not compared" in outcome.stderr
    assert run("ckpt-inspect", "diff", tmp_path / "number.pt", tmp_path / "number").stderr == ""


@pytest.mark.parametrize(
    ("state", "rename", "says"),
    [
        ({"a": {1: {"x": 1}}, "b": {True: {"y": 1}}}, "a=b", "Python takes for equal"),
        ({"a": {0: {"x": 1}}, "b": {"0": {"y": 1}}}, "a=b", "two keys of one mapping"),
        ({0: 1, "a": 2}, "a=0", "gives this name to two keys"),
    ],
    ids=str,
)
def test_keys_that_a_rename_makes_one_are_refused(state, rename, says, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "s.pt")
    made = tmp_path / "m.pt"
    convert = ("ckpt-convert", tmp_path / "s.pt", made, "--to", "torch")
    line = refuse({2, 4}, *convert, "--rename", rename)
    assert says in line
    assert not made.exists()


def test_a_renamed_number_stays_a_number(tmp_path: Path) -> None:
    state = {number: {"m": torch.ones(1)} for number in (0, 1)}
    torch.save({"o": {"state": state}}, tmp_path / "s.pt")
    succeed("ckpt-convert", tmp_path / "s.pt", tmp_path / "m.pt", "--to", "torch", "--verify",
            "--rename", "o.state.1=o.state.7")  # fmt: skip
    assert list(load(tmp_path / "m.pt")["o"]["state"]) == [0, 7]


def test_mappings_that_a_rename_brings_together_are_listed(tmp_path: Path) -> None:
    state = {"a": attributed(OrderedDict(x=torch.ones(1))), "b": {"y": torch.ones(1)}}
    torch.save(state, tmp_path / "s.pt")
    made = tmp_path / "m.pt"
    convert = ("ckpt-convert", tmp_path / "s.pt", made, "--to", "torch", "--rename", "a=b")
    assert "its attributes are lost" in refuse(4, *convert, "--strict")
    said = succeed(*convert, "--verify").stdout
    assert "not carried: /b: OrderedDict becomes a dict in a new file, and its attributes" in said
    assert "equal to the source" not in said
    assert type(load(made)["b"]) is dict


def test_a_folder_whose_typed_paths_are_others_is_refused(tmp_path: Path) -> None:
    torch.save({"s": {0: torch.ones(1)}}, tmp_path / "s.pt")
    succeed("ckpt-convert", tmp_path / "s.pt", tmp_path / "dcp", "--to", "torch_dist")
    metadata = pickle.loads((tmp_path / "dcp/.metadata").read_bytes())
    assert pickle.loads(metadata.shardwise_typed_paths) == {"s.0": ("s", 0)}
    for typed in ({"s.0": ("s", 1)}, {"s.0": ("s",)}, {"s.0": ["s", 0]}, [], {0: ("s", 0)}):
        metadata.shardwise_typed_paths = pickle.dumps(typed)
        (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(metadata))
        line = refuse(3, "ckpt-convert", tmp_path / "dcp", tmp_path / "m.pt", "--to", "torch")
        assert "shardwise_typed_paths" in line
        assert run("ckpt-inspect", "hash", tmp_path / "dcp", "--logical").code == 3

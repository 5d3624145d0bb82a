"""Plain state dicts: our conversions between torch.save and DCP, against PyTorch's converters."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from comparing import bytes_of, described, differences, tensors_in
from golden.plain import PLAIN_CASES, SHARDED_CASE
from programs import hash_of, refuse, run, succeed
from reading import DcpFolder, dcp_differences, is_tight, load

ALL_CASES = (*PLAIN_CASES, SHARDED_CASE)


def to_torch(folder: Path, target: Path) -> object:
    """What PyTorch's converter gives for a DCP folder."""
    dcp_to_torch_save(folder, target)
    return load(target)


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_dcp_that_we_write_is_pytorchs(name: str, products, generated: Path) -> None:
    """Keys, shapes, dtypes, chunks, bytes, objects and planner_data."""
    made = products.convert(generated / f"{name}.pt", "torch_dist")
    assert dcp_differences(DcpFolder(made), DcpFolder(generated / f"{name}_dcp")) == []


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_chunk_numbers_and_order_are_pytorchs(name: str, products, generated: Path) -> None:
    """Plain DCP numbers the chunks of a tensor, and Megatron and PyTorch iterate in file order."""

    def listed(folder: Path) -> tuple:
        metadata = DcpFolder(folder).metadata
        indices = {(i.fqn, i.offset, i.index) for i in metadata.storage_data}
        return list(metadata.state_dict_metadata), list(metadata.planner_data), indices

    made = products.convert(generated / f"{name}.pt", "torch_dist")
    ours, theirs = listed(made), listed(generated / f"{name}_dcp")
    assert sorted(ours[0]) == sorted(theirs[0])
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_pytorchs_converter_reads_the_dcp_that_we_write(
    name: str, products, generated: Path, tmp_path: Path
) -> None:
    made = products.convert(generated / f"{name}.pt", "torch_dist")
    ours = to_torch(made, tmp_path / "ours.pt")
    theirs = to_torch(generated / f"{name}_dcp", tmp_path / "theirs.pt")
    assert differences(ours, theirs) == []


@pytest.mark.parametrize("name", ALL_CASES)
def test_file_that_we_make_of_dcp_is_pytorchs(
    name: str, products, generated: Path, tmp_path: Path
) -> None:
    """Nested structure from planner_data, every value, and every tensor."""
    folder = generated / f"{name}_dcp"
    ours = load(products.convert(folder, "torch"))
    assert differences(ours, to_torch(folder, tmp_path / "theirs.pt")) == []


def test_recorded_dcp_becomes_pytorchs_file(products, fixtures: Path, tmp_path: Path) -> None:
    for name in ("dcp_w2", "dcp_w2_multifile", "dcp_w2_threads2"):
        folder = fixtures / name / "ckpt"
        ours = load(products.convert(folder, "torch"))
        assert differences(ours, to_torch(folder, tmp_path / f"{name}.pt")) == [], name


@pytest.mark.parametrize("name", ALL_CASES)
def test_tensors_survive_there_and_back(name: str, products, generated: Path) -> None:
    """Flattened as PyTorch flattens, since a DCP folder holds no more than that."""
    source = load(generated / f"{name}.pt")
    made = products.convert(products.convert(generated / f"{name}.pt", "torch_dist"), "torch")
    before, after = (flatten_state_dict(tree)[0] for tree in (source, load(made)))
    assert before.keys() == after.keys()
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert described(after[key])[1:3] == described(value)[1:3], key
            assert bytes_of(after[key]) == bytes_of(value), key
        else:
            assert differences(after[key], value) == [], key


def test_sharded_tensors_become_whole(products, generated: Path) -> None:
    """Rows, columns, uneven and empty chunks of two processes."""
    folder = generated / f"{SHARDED_CASE}_dcp"
    assert any(len(entry.chunks) > 1 for entry in DcpFolder(folder).tensors().values())
    ours = load(products.convert(folder, "torch"))
    assert differences(ours, load(generated / f"{SHARDED_CASE}.pt")) == []


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_dcp_load_into_a_state_dict_of_the_same_shape(
    name: str, products, generated: Path
) -> None:
    """torch.distributed.checkpoint.load, as a training script calls it."""
    source = load(generated / f"{name}.pt")
    made = products.convert(generated / f"{name}.pt", "torch_dist")
    flat = {
        key: torch.zeros_like(value.detach(), memory_format=torch.contiguous_format)
        for key, value in flatten_state_dict(source)[0].items()
        if isinstance(value, torch.Tensor) and value.numel()
    }
    dcp.load(flat, checkpoint_id=made, no_dist=True)
    for key, value in flatten_state_dict(source)[0].items():
        if key in flat:
            assert bytes_of(flat[key]) == bytes_of(value), key


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_hashes_survive_a_conversion(name: str, products, generated: Path) -> None:
    """The hashes of our own output are those of PyTorch's folder."""
    made = products.convert(generated / f"{name}.pt", "torch_dist")
    theirs = hash_of(generated / f"{name}_dcp")

    def tensors(document: dict) -> list:
        return sorted((t["key"], t["sha256"]) for t in document["tensors"])

    assert tensors(hash_of(made)) == tensors(theirs)


def test_tied_and_overlapping_tensors_stay_correct(products, generated: Path) -> None:
    """DCP cannot share storages; no tensor may drag a bigger storage into its entry."""
    made = DcpFolder(products.convert(generated / "plain_views.pt", "torch_dist"))
    for key, tensor in flatten_state_dict(load(generated / "plain_views.pt"))[0].items():
        assert bytes_of(made.tensor(key)) == bytes_of(tensor), key
        assert all(is_tight(chunk) for chunk in made.chunks(key).values()), key


def test_keys_that_flatten_to_one_name_are_refused(tmp_path: Path) -> None:
    """PyTorch refuses them too."""
    path = tmp_path / "twice.pt"
    torch.save({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}}, path)
    with pytest.raises(CheckpointException, match="duplicated flatten key"):
        torch_save_to_dcp(path, tmp_path / "theirs")
    line = refuse({3, 4}, "ckpt-convert", path, tmp_path / "made", "--to", "torch_dist")
    assert "a.b" in line
    assert not (tmp_path / "made").exists()


def test_a_file_made_of_dcp_holds_each_tensor_once(products, generated: Path) -> None:
    tree = load(products.convert(generated / "plain_nested_dcp", "torch"))
    for pointer, tensor in tensors_in(tree):
        assert is_tight(tensor), pointer


def test_convert_names_the_format_that_it_found(generated: Path, tmp_path: Path) -> None:
    """A file is told by its content, not by its name."""
    disguised = tmp_path / "weights.safetensors"
    disguised.write_bytes((generated / "plain_module.pt").read_bytes())
    outcome = run("ckpt-convert", disguised, tmp_path / "made", "--to", "torch_dist")
    assert outcome.code == 0, outcome
    theirs = DcpFolder(generated / "plain_module_dcp")
    assert DcpFolder(tmp_path / "made").tensors().keys() == theirs.tensors().keys()


def with_attributes(tensor: torch.Tensor, **attributes) -> torch.Tensor:
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


EMPTY_MAPPINGS = {
    "mapping": ({"a": {}, "w": torch.ones(2)}, ["/a"]),
    "in_lists": ({"a": [{}, torch.ones(2), {"b": {}}], "w": [{}]}, ["/a/0", "/a/2/b", "/w/0"]),
    "typed": ({"a": OrderedDict(), "b": Counter(), "c": {"d": {}}}, ["/a", "/b", "/c/d"]),
    "strange_keys": ({"": {}, "a/b": {"~": {}}}, ["/", "/a~1b/~0"]),
}


@pytest.mark.parametrize("name", EMPTY_MAPPINGS)
def test_empty_mappings_are_listed_one_by_one(name: str, tmp_path: Path) -> None:
    """PyTorch's folders have no entry for them, and neither have ours; a file keeps them."""
    state, pointers = EMPTY_MAPPINGS[name]
    source = tmp_path / "source.pt"
    torch.save(state, source)
    folder = tmp_path / "dcp"
    notes = succeed("ckpt-convert", source, folder, "--to", "torch_dist", "--json").json()
    listed = [n["what"] for n in notes["not_carried"] if "an empty mapping" in n["reason"]]
    assert listed == pointers
    torch_save_to_dcp(source, tmp_path / "theirs")
    assert dcp_differences(DcpFolder(folder), DcpFolder(tmp_path / "theirs")) == []
    line = refuse(4, "ckpt-convert", source, tmp_path / "o", "--to", "torch_dist", "--strict")
    assert "an empty mapping, which DCP does not store" in line
    succeed("ckpt-convert", source, tmp_path / "made.pt", "--to", "torch", "--strict")
    assert differences(load(tmp_path / "made.pt"), state) == []


@pytest.mark.parametrize(
    "state",
    [
        {"a": [], "w": torch.ones(2)},
        {"a": [[], [torch.ones(2), []], None]},
        {"a": [None, torch.ones(2), None], "b": {"c": None}, "d": (), "e": ({}, [])},
        {},
    ],
    ids=str,
)
def test_other_empty_values_survive_under_strict(state, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "source.pt")
    succeed(
        "ckpt-convert", tmp_path / "source.pt", tmp_path / "dcp", "--to", "torch_dist", "--strict"
    )
    succeed(
        "ckpt-convert", tmp_path / "dcp", tmp_path / "back.pt", "--to", "torch", "--strict"
    )
    assert differences(load(tmp_path / "back.pt"), state) == []


class Tagged(torch.Tensor):
    """A subclass that torch.save writes by its name."""


BESIDES = {
    "attribute": (lambda: with_attributes(torch.ones(3), rank=3), "its rank", "/w/@rank"),
    "parameter": (
        lambda: torch.nn.Parameter(torch.ones(3)),
        "the class torch.nn.Parameter, its requires_grad",
        "/w/@requires_grad",
    ),
    "parameter_with_state": (
        lambda: with_attributes(torch.nn.Parameter(torch.ones(3), requires_grad=False), rank=3),
        "the class torch.nn.Parameter, its rank",
        "/w/@rank",
    ),
    "requires_grad": (
        lambda: torch.ones(3, requires_grad=True),
        "its requires_grad",
        "/w/@requires_grad",
    ),
    "subclass": (
        lambda: torch.ones(3).as_subclass(Tagged),
        f"the class {__name__}.Tagged",
        "/w/@__class__",
    ),
}


@pytest.fixture(params=BESIDES)
def besides(request, tmp_path: Path) -> tuple[Path, str, str]:
    make, text, entry = BESIDES[request.param]
    torch.save({"w": make()}, tmp_path / "with.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "plain.pt")
    return tmp_path / "with.pt", text, entry


def test_what_a_tensor_is_besides_its_elements_is_listed(besides, tmp_path: Path) -> None:
    source, text, _ = besides
    for form, where in (("torch_dist", "DCP"), ("safetensors", "safetensors")):
        said = succeed("ckpt-convert", source, tmp_path / form, "--to", form).stdout
        assert f"not carried: attributes of w: {text}; {where} holds plain tensors" in said
        line = refuse(4, "ckpt-convert", source, tmp_path / "strict", "--to", form, "--strict")
        assert text in line


def test_a_file_keeps_what_a_tensor_is_besides_its_elements(besides, tmp_path: Path) -> None:
    succeed("ckpt-convert", besides[0], tmp_path / "made.pt", "--to", "torch", "--strict")
    assert differences(load(tmp_path / "made.pt"), load(besides[0])) == []


def test_hash_diff_ls_and_show_see_what_a_tensor_is_besides(besides) -> None:
    source, _, entry = besides
    plain = source.with_name("plain.pt")
    ours, theirs = hash_of(source), hash_of(plain)
    assert ours["tensors"] == theirs["tensors"]
    assert ours["digest"] != theirs["digest"]
    assert entry in [listed["key"] for listed in ours["objects"]]
    assert entry in run("ckpt-inspect", "diff", source, plain).stdout
    assert run("ckpt-inspect", "diff", source, plain).code == 1
    assert entry in succeed("ckpt-inspect", "ls", source).stdout
    assert entry.removeprefix("/w/") in succeed("ckpt-inspect", "show", source, "/w").stdout
    shown = succeed("ckpt-inspect", "show", source, "/w", "--json").json()["entries"][0]
    assert entry.removeprefix("/w/@") in shown["tensor"]["attributes"]
    succeed("ckpt-inspect", "show", source, entry)


def test_the_class_of_a_tensor_inside_an_object_counts(tmp_path: Path) -> None:
    for name, tensor in (("a", torch.ones(3)), ("b", torch.ones(3).as_subclass(Tagged))):
        torch.save({"o": {"w": tensor}}, tmp_path / f"{name}.pt")
    assert run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt").code == 1


@pytest.mark.parametrize("value", [5, torch.ones(2), {"a": torch.ones(2)}, [5]], ids=str)
def test_diff_tells_a_number_from_its_text(value, tmp_path: Path) -> None:
    torch.save({1: value}, tmp_path / "a.pt")
    torch.save({"1": value}, tmp_path / "b.pt")
    outcome = run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert outcome.code == 1
    assert "the key is int | str" in outcome.stdout
    found = run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").json()
    different = found["tensors"]["different"] + found["objects"]["different"]
    assert [(d["kind"], d["key_types"]) for d in different] == [("key", ["int", "str"])]


@pytest.mark.parametrize(
    "state",
    [
        {1: torch.ones(2), "1": torch.zeros(2)},
        {"a": {1: {"x": torch.ones(2)}, "1": {"y": torch.ones(2)}}},
        {"a": {True: 1, "True": {}}},
        {"a": {3: [torch.ones(2)], "3": {"b": torch.ones(2)}}},
        {"a": {-0.0: {"x": 1}, "-0.0": [{}]}},
    ],
    ids=str,
)
def test_keys_of_one_text_are_refused(state, tmp_path: Path) -> None:
    """As strings they would be one key: a merged mapping, or a folder that cannot be read back."""
    torch.save(state, tmp_path / "source.pt")
    for form in ("torch_dist", "safetensors", "torch"):
        line = refuse(4, "ckpt-convert", tmp_path / "source.pt", tmp_path / "o", "--to", form)
        assert "two keys of one mapping" in line or "two values have this key" in line
    same = run("ckpt-inspect", "diff", tmp_path / "source.pt", tmp_path / "source.pt")
    assert same.code == 0, same


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(
    "key",
    [
        b"bytes", b"it's", b"it's \"so\"", b"\x00\n\\\x7f\xe9", b"", frozenset(), frozenset({1}),
        frozenset({b"x"}), (b"a", frozenset({2})),
    ],
    ids=str,
)  # fmt: skip
def test_a_key_is_named_as_str_shows_it(key: object, protocol: int, tmp_path: Path) -> None:
    source, folder = tmp_path / "source.pt", tmp_path / "dcp"
    torch.save({"a": {key: torch.ones(2)}}, source, pickle_protocol=protocol)
    listed = succeed("ckpt-convert", source, folder, "--to", "torch_dist", "--json").json()
    key_text = "/" + str(key)
    assert [n["what"] for n in listed["not_carried"]] == [f"key /a{key_text}"]
    dcp_to_torch_save(folder, tmp_path / "theirs.pt")
    assert list(load(tmp_path / "theirs.pt")["a"]) == [str(key)]


def test_requires_grad_of_a_folder_stays_in_metadata(tmp_path: Path) -> None:
    """PyTorch keeps it there and applies it nowhere: a file made of the folder is without."""
    state = {"w": torch.ones(2, requires_grad=True), "v": torch.ones(2)}
    dcp.save(state, checkpoint_id=tmp_path / "source", no_dist=True)
    for options in (("--to", "torch_dist"), ("--to", "torch_dist", "--strict", "--verify")):
        made = tmp_path / options[-1]
        succeed("ckpt-convert", tmp_path / "source", made, *options)
        entries = dcp.FileSystemReader(made).read_metadata().state_dict_metadata
        assert {key: entry.properties.requires_grad for key, entry in entries.items()} == {
            "w": True, "v": False
        }  # fmt: skip
    succeed("ckpt-convert", tmp_path / "source", tmp_path / "made.pt", "--to", "torch", "--strict")
    assert not load(tmp_path / "made.pt")["w"].requires_grad


def test_names_that_cannot_be_nested_again_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, tmp_path / "source.pt")
    line = refuse(
        4, "ckpt-convert", tmp_path / "source.pt", tmp_path / "o", "--to", "torch_dist",
        "--rename", "b=a",
    )  # fmt: skip
    assert "could not be read back" in line


CONTROLS = "\x7f\x9b\u00ad\u061c\u200b\u202e\u2066\u2060\ufeff\U000e0001"


def test_json_prints_no_control_or_format_character_raw(tmp_path: Path) -> None:
    """Escaped, they are the same strings to whoever parses them."""
    key = f"key{CONTROLS}\u043a\u043b\u044e\u0447\U0001f600"
    source = tmp_path / f"{CONTROLS[1:4]}.pt"
    torch.save({key: torch.ones(2), "o": {key: [key]}}, source)
    commands = [
        *(("ckpt-inspect", what, source) for what in ("hash", "ls", "tree", "verify")),
        ("ckpt-inspect", "show", source, f"/{key}", "/o"),
        ("ckpt-inspect", "diff", source, source),
        ("ckpt-convert", source, tmp_path / "dcp", "--to", "torch_dist"),
        ("ckpt-inspect", "show", source, f"/absent{key}"),
    ]
    for command in commands:
        printed = run(*command, "--json").stdout
        assert not set(CONTROLS) & set(printed), command
    tree = succeed("ckpt-inspect", "ls", source, "--json").json()
    assert tree["tensors"][0]["key"] == f"/{key}"
    readable = key.removeprefix(f"key{CONTROLS}")
    assert readable in succeed("ckpt-inspect", "ls", source, "--json").stdout

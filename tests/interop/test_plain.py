"""Plain state dicts: our conversions between torch.save and DCP, against PyTorch's converters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from comparing import bytes_of, described, differences, tensors_in
from golden.plain import PLAIN_CASES, SHARDED_CASE
from programs import hash_of, refuse, run
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

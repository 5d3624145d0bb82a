"""Tensors come as torch and numpy have them, whole and in parts."""
from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwise as sw
from conftest import DTYPES, MEGATRON, tensors

NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


@pytest.fixture(params=["torch_file", "safetensors_file", "dcp_folder"])
def opened(request: pytest.FixtureRequest) -> Any:
    with sw.open(request.getfixturevalue(request.param)) as checkpoint:
        yield checkpoint


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [x.contiguous().flatten().view(torch.uint8) for x in (a, b)] if a.numel() else [a, b]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def test_every_tensor_of_each_format_is_the_one_that_was_saved(opened: sw.Checkpoint) -> None:
    assert len(opened) == len(list(opened)) > 15
    for name, tensor in opened.items():
        expected = tensors()[name.removeprefix("/")]
        assert same(tensor.torch(), expected), name
        assert tensor.shape == tuple(expected.shape) and tensor.ndim == expected.ndim
        assert tensor.nbytes == expected.numel() * expected.element_size()
        assert tensor.size == expected.numel() and f"torch.{tensor.dtype}" == str(expected.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_has_each_type_with_ml_dtypes(torch_file: Path, name: str) -> None:
    with sw.open(torch_file) as checkpoint:
        array = np.asarray(checkpoint["/" + name])
    assert array.dtype.name == name and array.shape == (3, 4) and array.flags.writeable
    assert array.tobytes() == tensors()[name].flatten().view(torch.uint8).numpy().tobytes()


def test_without_ml_dtypes_a_type_error_says_what_to_install(
        torch_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with sw.open(torch_file) as checkpoint:
        with pytest.raises(TypeError, match="numpy has no bfloat16: install ml_dtypes"):
            np.asarray(checkpoint["/bfloat16"])
        assert np.asarray(checkpoint["/float32"]).dtype == np.float32


INDICES: list[Any] = [
    0, -1, slice(1), slice(0, 0), (slice(None), 2), (..., slice(1, None, 2)), (1, ..., 0),
    (slice(None, None, 2), slice(1, 3), slice(None, None, 3)), (1, 2, -1), (), ...,
    (slice(-1, None), slice(5, 9))]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("name", ["cube", "transposed"])
def test_slices_are_numpys(torch_file: Path, name: str, index: Any) -> None:
    expected = tensors()[name].numpy()[index]
    with sw.open(torch_file) as checkpoint:
        part = checkpoint["/" + name][index]
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part, expected)


def test_slices_of_slices_and_their_errors(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint:
        cube = checkpoint["/cube"]
    array = tensors()["cube"].numpy()
    np.testing.assert_array_equal(cube[1][::2][:, 1:][0], array[1][::2][:, 1:][0])
    assert len(cube[:, 1]) == 2
    for bad in (2, -3, (0, 0, 0, 0), (..., ...), slice(None, None, -1)):
        with pytest.raises(IndexError):
            cube[bad]
    with pytest.raises(TypeError):
        len(cube[0, 0, 0])


def test_dlpack_gives_torch_and_numpy_the_memory_that_was_read(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint:
        assert torch.equal(torch.from_dlpack(checkpoint["/cube"]), tensors()["cube"])
        assert same(torch.from_dlpack(checkpoint["/bfloat16"]), tensors()["bfloat16"])
        np.testing.assert_array_equal(np.from_dlpack(checkpoint["/cube"][1]), tensors()["cube"][1])


def test_read_into_memory_that_is_there(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint:
        buffer = bytearray(48)
        checkpoint["/cube"][1].read_into(buffer)
        assert bytes(buffer) == tensors()["cube"][1].numpy().tobytes()
        with pytest.raises(sw.InvalidArgumentError):
            checkpoint["/cube"].read_into(buffer)
        with pytest.raises((BufferError, TypeError)):
            checkpoint["/cube"][1].read_into(bytes(48))


def test_a_large_tensor_is_read_by_several_threads(tmp_path: Path) -> None:
    saved = torch.arange(5_000_000, dtype=torch.int64).view(5, -1)
    torch.save({"w": saved}, tmp_path / "large.pt")
    with sw.open(tmp_path / "large.pt") as checkpoint:
        assert torch.equal(checkpoint["/w"].torch(), saved)
        assert torch.equal(checkpoint["/w"][1:, 7:-3].torch(), saved[1:, 7:-3])


@pytest.mark.parametrize("saved", ["torch_file", "safetensors_file", "dcp_folder"])
def test_mapped_tensors_are_the_same_and_writing_leaves_the_file(
        saved: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(saved)
    with sw.open(path, mmap=True) as mapped, sw.open(path) as read:
        for name in read:
            assert same(mapped[name].torch(), read[name].torch()), name
        name = next(name for name in read if name.endswith("cube"))
        for index in INDICES:
            np.testing.assert_array_equal(mapped[name][index], read[name][index])
        array = mapped[name].numpy()
        assert array.base is not None
        array[:] = -1
        assert (read[name].numpy() >= 0).all()


def test_chunks_say_where_a_tensor_is(dcp_folder: Path) -> None:
    with sw.open(dcp_folder) as checkpoint:
        chunk, = checkpoint["cube"].chunks
        assert chunk.sizes == (2, 3, 4) and chunk.offsets == (0, 0, 0) and chunk.nbytes >= 96
        assert chunk.file.endswith(".distcp") and chunk.offset_bytes >= 0
        assert repr(checkpoint["cube"]) == "<shardwise.Tensor 'cube' float32 [2, 3, 4]>"


@pytest.mark.parametrize("layout", MEGATRON)
def test_names_of_the_training_state_are_joined_from_all_ranks(layout: str) -> None:
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    with sw.open(MEGATRON[layout]) as checkpoint:
        assert checkpoint.format == layout and checkpoint.iteration == 3
        weight = checkpoint[name]
        assert weight.ndim == 2 and weight.dtype == "bfloat16"
        assert checkpoint.args is not None and checkpoint.args["num_layers"] == 1
        assert checkpoint["optimizer.state.fp32_param." + name].shape == weight.shape


def test_metadata_objects_and_values_by_name(torch_file: Path, safetensors_file: Path) -> None:
    with sw.open(safetensors_file) as checkpoint:
        assert checkpoint.metadata == {"format": "pt"} and checkpoint.args is None
        assert checkpoint.iteration is None and checkpoint.format == "safetensors"
    with sw.open(torch_file) as checkpoint:
        assert "/args" in checkpoint.objects and checkpoint.path == str(torch_file)
        assert checkpoint["/args"].lr == checkpoint["args.lr"] == 0.25
        assert str(checkpoint["/args"].cls) == "argparse.Namespace"
        with pytest.raises(AttributeError):
            checkpoint["/args"].missing


def test_what_is_not_there_is_a_key_error_with_the_nearest_name(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint:
        assert "/cube" in checkpoint and "/cubes" not in checkpoint
        assert checkpoint.get("/cubes") is None
        with pytest.raises(KeyError, match="did you mean|cube") as raised:
            checkpoint["/cubes"]
        assert isinstance(raised.value, sw.MissingKeyError) and raised.value.key == "/cubes"
        with pytest.raises(sw.MissingKeyError, match="slice"):
            checkpoint["/cube[0]"]
        with pytest.raises(sw.MissingKeyError, match="names"):
            checkpoint["*"]
        with pytest.raises(TypeError):
            checkpoint[0]  # type: ignore[index]


def test_a_closed_checkpoint_says_so_and_its_tensors_stay(torch_file: Path) -> None:
    checkpoint = sw.open(torch_file)
    cube = checkpoint["/cube"]
    checkpoint.close()
    assert repr(checkpoint) == "<shardwise.Checkpoint, closed>"
    with pytest.raises(ValueError, match="closed"):
        checkpoint["/cube"]
    assert torch.equal(cube.torch(), tensors()["cube"])


def test_public_names_are_the_ones_that_are_listed() -> None:
    public = {name for name in vars(sw) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(sw, name), type(sys))}
    assert public - modules == set(sw.__all__) - {"__version__", "torch"}
    assert builtins.open is not sw.open and sw.__version__

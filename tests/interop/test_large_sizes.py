"""Tensors without elements of sizes that overflow: torch.empty says which shapes there can be."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

from hostile.archives import viewing
from programs import BIN, hash_of, refuse

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

CORRUPT = 3
MAX = 2**63 - 1
Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = (
    (0,), (2, 0, 3), (0, MAX), (MAX, 0), (MAX, 0, MAX), (0, 0, MAX), (2, 0, 2**62), (2**62, 0, 2),
    (0, MAX, 1), (0, 1, MAX), (0, MAX, 2), (0, 2, 2**62), (0, 2, 2**62 - 1), (0, MAX, MAX),
    (0, 5, 2**62 + 1), (0, 2**62 + 1, 5), (5, 2**62 + 1, 0), (0, 2**32, 2**31), (0, 2**32, 2**32),
    (2**32, 0, 2**32), (2**32, 2**31, 0), (2**32, 2**32, 0), (2, MAX, 0), (3, MAX, 0),
    (0, MAX, 0, MAX), (2**32, 2**32, 0, 1), (1, 0, 2**32, 2**31), (2**62, 2, 2, 0), (0, 2**63),
)  # fmt: skip


def torch_has(shape: Shape) -> bool:
    try:
        torch.empty(shape, dtype=torch.uint8)
    except (RuntimeError, TypeError):
        return False
    return True


def file_of_torch_save(folder: Path, shape: Shape) -> Path:
    path = folder / "w.pt"
    path.write_bytes(viewing(0, list(shape), [1] * len(shape)))
    return path


class StatedSize:
    """Pickled as a torch.Size, which would not take 2^63."""

    def __init__(self, shape: Shape):
        self.shape = shape

    def __reduce__(self):
        return torch.Size, (self.shape,)


def folder_of_dcp(folder: Path, shape: Shape) -> Path:
    properties = TensorProperties(dtype=torch.uint8)
    entries = {"w": TensorStorageMetadata(properties, StatedSize(shape), [])}
    metadata = Metadata(entries, storage_data={})
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def file_of_safetensors(folder: Path, shape: Shape) -> Path:
    entry = {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    path = folder / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("write", [file_of_torch_save, folder_of_dcp, file_of_safetensors])
def test_shapes_that_torch_has_are_read_and_no_other(
    write: Callable[[Path, Shape], Path], shape: Shape, tmp_path: Path
) -> None:
    source = write(tmp_path, shape)
    if torch_has(shape):
        (listed,) = hash_of(source)["tensors"]
        assert tuple(listed["shape"]) == shape
        return
    line = refuse(CORRUPT, "ckpt-inspect", "hash", source)
    assert (source.name if source.is_file() else ".metadata") in line
    refusals = ("2^63 - 1", "not a valid size", "not a whole number")
    assert "w'" in line and any(words in line for words in refusals), line

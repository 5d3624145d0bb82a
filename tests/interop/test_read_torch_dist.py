"""The reader written from docs/formats/torch_dist.md against PyTorch's own DCP reader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from comparing import bytes_of, dtype_name
from programs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/formats"))
from read_torch_dist import TorchDist

GOLDEN = REPOSITORY / "tests/golden"
NEWER = "no_save_optim_torch_dist_dp2"  # properties of six parts, which torch 2.11 cannot load
PLAIN = ("dtypes", "leaves", "module", "nested", "objects", "sharded", "views")


def pytorchs_answer(folder: Path) -> dict[str, tuple]:
    reader = dcp.FileSystemReader(folder)
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if hasattr(entry, "size")
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return {k: (dtype_name(t.dtype), tuple(t.shape), bytes_of(t)) for k, t in state.items()}


def our_answer(folder: Path) -> dict[str, tuple]:
    store = TorchDist(folder)
    return {key: (*tensor[:2], store.read(key)) for key, tensor in store.tensors.items()}


@pytest.mark.parametrize("name", PLAIN)
def test_reads_plain_folders_as_pytorch_does(name: str, generated: Path) -> None:
    folder = generated / f"plain_{name}_dcp"
    assert our_answer(folder) == pytorchs_answer(folder) != {}


def test_reads_golden_sets_as_pytorch_does() -> None:
    folders = [path.parent for path in GOLDEN.rglob(".metadata") if NEWER not in path.parts]
    assert len(folders) >= 15
    for folder in folders:
        assert our_answer(folder) == pytorchs_answer(folder) != {}, folder

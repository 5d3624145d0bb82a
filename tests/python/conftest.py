"""What the tests of the Python module share: checkpoints that torch and safetensors write here, and
one of Megatron's from tests/golden."""
from __future__ import annotations

import argparse
import collections
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
MEGATRON = {"torch_dist": GOLDEN / "gpt1l_tiny_torch_dist_dp2",
            "torch": GOLDEN / "gpt1l_tiny_torch_dp2"}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
          torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
          torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]


def of_dtype(dtype: torch.dtype) -> torch.Tensor:
    """3 x 4 elements whose bytes say where they are."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(12 * size, dtype=torch.uint8)
    return (raw % 2).bool().view(3, 4) if dtype == torch.bool else raw.view(dtype).view(3, 4)


def state() -> dict[str, object]:
    """One of each type, views, an empty and a 0-dim tensor, and things that are no tensors."""
    big = torch.arange(24.0).view(2, 3, 4)
    values: dict[str, object] = {str(dtype).removeprefix("torch."): of_dtype(dtype)
                                 for dtype in DTYPES}
    return values | {"cube": big, "transposed": big.transpose(0, 2), "scalar": torch.tensor(7.5),
                     "empty": torch.empty(0, 3), "tied": big,
                     "args": argparse.Namespace(lr=0.25, name="run"),
                     "order": collections.OrderedDict(b=1, a=(2, 3)),
                     "others": [None, True, 2**70, b"x", {1, 2}, torch.Size((2, 3)), 1 + 2j]}


def tensors() -> dict[str, torch.Tensor]:
    return {key: value for key, value in state().items() if isinstance(value, torch.Tensor)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def torch_file(folder: Path) -> Path:
    torch.save(state(), folder / "state.pt")
    return folder / "state.pt"


@pytest.fixture(scope="session")
def safetensors_file(folder: Path) -> Path:
    path = folder / "model.safetensors"
    kept = {key: value.contiguous().clone() for key, value in tensors().items()
            if not str(value.dtype).endswith(("fnuz", "fnu", "complex128"))}
    save_file(kept, path, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="session")
def dcp_folder(folder: Path) -> Path:
    import torch.distributed.checkpoint as dcp
    kept = {key: value for key, value in tensors().items() if key != "empty"}
    dcp.save(kept, checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"

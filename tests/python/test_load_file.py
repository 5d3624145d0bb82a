"""load_file is torch.load without the code."""
from __future__ import annotations

import collections
import datetime
import enum
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwise as sw
from conftest import state, tensors


class Color(enum.Enum):
    RED = 1


class Trap:
    """Unpickled, it would leave a file."""

    def __reduce__(self) -> object:
        return open, ("trapped", "w")


def test_values_are_those_of_torch_load(torch_file: Path) -> None:
    loaded = sw.load_file(torch_file)
    expected = state()
    assert list(loaded) == list(expected)
    for key, tensor in tensors().items():
        raw = [value.contiguous().flatten().view(torch.uint8) for value in (loaded[key], tensor)
               if value.numel()]
        assert loaded[key].dtype == tensor.dtype and loaded[key].shape == tensor.shape
        assert not raw or torch.equal(*raw), key
    assert loaded["others"] == expected["others"]
    assert isinstance(loaded["order"], collections.OrderedDict)
    assert loaded["order"] == expected["order"]
    assert loaded["args"].lr == 0.25 and str(loaded["args"].cls) == "argparse.Namespace"
    assert loaded["cube"] is not loaded["transposed"] and loaded["tied"] is loaded["cube"]


def test_numpy_and_lazy_tensors(torch_file: Path, safetensors_file: Path) -> None:
    arrays = sw.load_file(torch_file, framework="numpy")
    np.testing.assert_array_equal(arrays["transposed"], tensors()["transposed"].numpy())
    lazy = sw.load_file(torch_file, framework="lazy")
    assert isinstance(lazy["cube"], sw.Tensor) and lazy["cube"][1].shape == (3, 4)
    assert torch.equal(sw.load_file(safetensors_file)["cube"], tensors()["cube"])
    with pytest.raises(sw.InvalidArgumentError, match="framework"):
        sw.load_file(torch_file, framework="jax")


def test_objects_are_inert_and_nothing_runs(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"trap": Trap(), "color": Color.RED, "when": datetime.timedelta(3),
                "dtype": torch.bfloat16, "many": collections.Counter("aab")}, "objects.pt")
    loaded = sw.load_file("objects.pt")
    assert not Path("trapped").exists()
    assert isinstance(loaded["trap"], sw.Inert) and loaded["trap"].cls.name == "open"
    assert loaded["trap"].args == ("trapped", "w") and repr(loaded["trap"]).startswith("<inert ")
    assert loaded["color"].cls.name in ("Color", "getattr")
    assert loaded["color"].args[-1] in (1, "RED")
    assert loaded["dtype"] == sw.Global("torch", "bfloat16") and str(loaded["dtype"])
    assert loaded["when"].args == (3, 0, 0)


def test_sharing_and_cycles_stay(tmp_path: Path) -> None:
    shared: list[object] = [1]
    circle: dict[str, object] = {"list": [shared, shared], "tuple": (shared,)}
    circle["self"] = circle
    torch.save(circle, tmp_path / "circle.pt")
    loaded = sw.load_file(tmp_path / "circle.pt")
    assert loaded["self"] is loaded
    assert loaded["list"][0] is loaded["list"][1] is loaded["tuple"][0]


def test_depth_is_no_recursion(tmp_path: Path) -> None:
    def archive(data: bytes) -> Path:
        torch.save(0, tmp_path / "deep.pt", pickle_module=_Writes(data))
        return tmp_path / "deep.pt"

    deep = sw.load_file(archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."))
    levels = 1
    while deep:
        deep, levels = deep[0], levels + 1
    assert levels == 100_000
    with pytest.raises(sw.CorruptError, match="nested"):
        sw.load_file(archive(b"\x80\x02)" + b"\x85" * 5000 + b"."))
    with pytest.raises(sw.CorruptError, match="hash"):
        sw.load_file(archive(b"\x80\x02}]K\x01s."))
    with pytest.raises((sw.Error, ValueError)):
        size = (4000).to_bytes(4, "little")
        sw.load_file(archive(b"\x80\x02\x8b" + size + b"\x7f" * 4000 + b"."))
    assert math.isnan(sw.load_file(archive(pickle.dumps(float("nan"), 2))))


class _Writes:
    """A pickle module for torch.save whose pickle is given."""

    __name__ = "writes"

    def __init__(self, data: bytes) -> None:
        given = data

        class Pickler:
            persistent_id = None

            def __init__(self, file: object, protocol: int = 2) -> None:
                self.file = file

            def dump(self, _: object) -> None:
                self.file.write(given)  # type: ignore[attr-defined]

        self.Pickler = Pickler


def test_what_is_no_torch_save_file_is_refused(dcp_folder: Path) -> None:
    with pytest.raises(sw.InvalidArgumentError, match="torch.save"):
        sw.load_file(dcp_folder)

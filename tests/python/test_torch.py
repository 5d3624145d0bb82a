"""load_into gives a model what torch's own loaders give it, and reads no more than it needs."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh

import shardwise as sw
from conftest import MEGATRON


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7),
                               torch.nn.Linear(7, 3, dtype=torch.bfloat16))


def saved(form: str, folder: Path) -> Path:
    weights = network().state_dict()
    if form == "dcp":
        dcp.save({"model": weights}, checkpoint_id=folder / "dcp", no_dist=True)
        return folder / "dcp"
    path = folder / f"a.{form}"
    save_file(weights, path) if form == "safetensors" else torch.save({"state_dict": weights}, path)
    return path


@pytest.mark.parametrize("form", ["pt", "dcp", "safetensors"])
def test_a_model_gets_what_was_saved(form: str, tmp_path: Path) -> None:
    model = network(seed=1)
    places = {name: value.data_ptr() for name, value in model.state_dict().items()}
    assert sw.torch.load_into(model, saved(form, tmp_path)) == ([], [])
    for name, value in model.state_dict().items():
        assert torch.equal(value, network().state_dict()[name]), name
        assert value.data_ptr() == places[name]


def test_types_and_layouts_are_the_models(tmp_path: Path) -> None:
    model = network(seed=1).double()
    model[0].weight = torch.nn.Parameter(torch.empty(5, 7, dtype=torch.float64).t())
    sw.torch.load_into(model, saved("pt", tmp_path))
    for name, value in model.state_dict().items():
        assert torch.equal(value, network().state_dict()[name].to(value.dtype)), name


def test_large_tensors_are_rounded_part_by_part(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sw.torch, "_SLAB_BYTES", 64)
    torch.save({"weight": torch.arange(600.0).view(3, 200)}, tmp_path / "a.pt")
    model = torch.nn.Linear(200, 3, bias=False, dtype=torch.float16)
    sw.torch.load_into(model, tmp_path / "a.pt")
    assert torch.equal(model.weight, torch.arange(600.0).view(3, 200).half())


def test_names_that_differ_are_told_or_refused(tmp_path: Path) -> None:
    path = saved("safetensors", tmp_path)
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(7, 5))
    model.other = torch.nn.Parameter(torch.zeros(2))
    told = "missing: weight, other; unexpected: .*0.bias"
    with pytest.raises(sw.InvalidArgumentError, match=told):
        sw.torch.load_into(model, path)
    assert not model.weight.any()
    for names in ({"weight": "0.weight"}, lambda name: "0." + name):
        model.weight.data.zero_()
        missing, unexpected = sw.torch.load_into(model, path, strict=False, names=names)
        assert missing == ["other"] and "0.bias" in unexpected and "0.weight" not in unexpected
        assert torch.equal(model.weight, network().state_dict()["0.weight"])


@pytest.mark.parametrize("model, match", [
    (torch.nn.Linear(4, 7), "in shape"), (torch.nn.Linear(5, 7, device="meta"), "meta")])
def test_what_does_not_fit_is_refused(model: torch.nn.Module, match: str, tmp_path: Path) -> None:
    with pytest.raises(sw.Error, match=match):
        sw.torch.load_into(model, saved("pt", tmp_path), strict=False,
                           names=lambda name: "state_dict.0." + name)


def test_megatrons_checkpoints_are_read_by_the_models_names() -> None:
    with sw.open(MEGATRON["torch_dist"]) as checkpoint:
        name, param = next(iter(checkpoint.params.items()))
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(param.shape))
    for path in MEGATRON.values():
        missing, unexpected = sw.torch.load_into(model, path, strict=False, names={"weight": name})
        assert not missing and len(unexpected) == 7
        assert torch.equal(model.weight, param.weight.torch().float())


@pytest.fixture(params=range(4))
def rank_of_four(request: pytest.FixtureRequest) -> Iterator[int]:
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=4)
    yield request.param
    dist.destroy_process_group()


def test_a_dtensor_gets_its_own_part(rank_of_four: int, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 10 + 4 * rank_of_four  # torch keeps where parts are by shape, whatever the rank is
    whole = torch.arange(rows * 7.0).view(rows, 7)
    torch.save({"weight": whole}, tmp_path / "a.pt")
    mesh = init_device_mesh("cpu", (2, 2))
    read: list[int] = []
    taken = sw.Tensor.read_into
    monkeypatch.setattr(sw.Tensor, "read_into",
                        lambda tensor, buffer: (read.append(tensor.nbytes), taken(tensor, buffer)))
    for placements in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]):
        part = whole
        for place, size_rank in zip(placements, divmod(rank_of_four, 2)):
            if isinstance(place, Shard):
                part = part.chunk(2, place.dim)[size_rank]
        model = torch.nn.Module()
        local = torch.zeros(part.shape)
        model.weight = torch.nn.Parameter(DTensor.from_local(
            local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()))
        read.clear()
        assert sw.torch.load_into(model, tmp_path / "a.pt") == ([], [])
        assert torch.equal(model.weight.to_local(), part)
        assert read == [part.numel() * 4]


def test_a_partial_dtensor_is_refused(rank_of_four: int, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(4)}, tmp_path / "a.pt")
    model: Any = torch.nn.Module()
    model.weight = torch.nn.Parameter(DTensor.from_local(
        torch.zeros(4), init_device_mesh("cpu", (4,)), [Partial()], run_check=False))
    with pytest.raises(sw.UnsupportedError, match="partial"):
        sw.torch.load_into(model, tmp_path / "a.pt")

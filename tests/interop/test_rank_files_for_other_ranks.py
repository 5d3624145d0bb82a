"""Files of FSDP's ranks for another number of them are those that its own ranks would have saved.

The oracle is the same model, sharded over that many ranks and saved by PyTorch itself: each file's
tree, and of each DTensor its local elements, mesh and placements. Then real processes load them.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from programs import BIN, refuse, succeed, verify
from test_rank_files import (
    FAULTS,
    STEPS,
    Net,
    check_equal,
    leaves,
    save_ranks,
    states_of,
    whole,
)

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

FSDP, HSDP, TP = ("fsdp",), ("ddp", "fsdp"), ("fsdp", "tp")
# 7 ranks are more than some tensors have rows.
CHANGES = [((3,), (7,), FSDP), ((7,), (3,), FSDP), ((3,), (1,), FSDP), ((1,), (3,), FSDP),
           ((2, 2), (3, 2), HSDP), ((3, 2), (2, 2), HSDP),
           ((3, 2), (2, 2), TP), ((2, 2), (1, 2), TP)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    logging.disable(logging.WARNING)
    root, made = tmp_path_factory.mktemp("ranks"), {}

    def get(sizes: tuple[int, ...], names: tuple[str, ...] = FSDP) -> Path:
        if (sizes, names) not in made:
            path = root / "x".join(map(str, [*sizes, *names]))
            made[sizes, names] = save_ranks(path, sizes, names)
        return made[sizes, names]

    return get


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def in_processes(count: int, target: Callable[..., None], *arguments: object) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=target, args=(rank, count, *arguments))
             for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * count


def compare(ours: object, theirs: object, place: str = "") -> None:
    assert type(ours) is type(theirs), place
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        versions = getattr(theirs, "_metadata", None)  # of modules: a DCP folder has none
        assert getattr(ours, "_metadata", versions) == versions, place
        for key, value in theirs.items():
            compare(ours[key], value, f"{place}/{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other, place)
    elif isinstance(theirs, DTensor):
        assert ours._spec == theirs._spec, place
        assert ours.device_mesh == theirs.device_mesh, place
        assert ours.device_mesh._dim_group_names == theirs.device_mesh._dim_group_names, place
        assert ours.device_mesh.get_coordinate() == theirs.device_mesh.get_coordinate(), place
        assert ours.device_mesh.mesh.equal(theirs.device_mesh.mesh), place
        compare(ours.to_local(), theirs.to_local(), place)
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), place
        assert ours.requires_grad == theirs.requires_grad, place
    else:
        assert ours == theirs, place


def compare_files(rank: int, count: int, ours: Path, theirs: Path, source_ranks: int,
                  is_ordered: bool = True, model_only: bool = False) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    for kind in ("model",) if model_only else ("model", "optim", "extra_state"):
        name = f"{kind}_world_size_{count}_rank_{rank}.pt"
        made, wanted = (torch.load(folder / name, weights_only=False) for folder in (ours, theirs))
        if is_ordered:  # not of a DCP folder
            is_new = rank >= source_ranks
            assert list(leaves(made)) == [
                key for key in leaves(wanted) if not (is_new and key.startswith("/rng"))]
        if kind == "extra_state" and rank >= source_ranks:
            del wanted["rng"]
        compare(made, wanted, kind)


@pytest.mark.parametrize(("source", "target", "names"), CHANGES, ids=str)
def test_files_are_those_that_the_ranks_would_have_saved(
    source: tuple[int, ...], target: tuple[int, ...], names: tuple[str, ...],
    sets: Callable[..., Path], tmp_path: Path,
) -> None:
    before, after = math.prod(source), math.prod(target)
    told = succeed("ckpt-convert", sets(source, names), tmp_path / "out", "--to", "rank_files",
                   "--world-size", after, "--verify").text
    assert ("have no rng" in told) == (after > before), told
    assert ("there is no such rank in the new files" in told) == (after < before), told
    assert verify(tmp_path / "out")[0] == 0
    in_processes(after, compare_files, tmp_path / "out", sets(target, names), before)


@pytest.mark.parametrize(("source", "names", "target"),
                         [((3, 2), TP, (2,)), ((2, 2, 2), (*HSDP, "tp"), (2, 2))], ids=str)
def test_tensor_parallel_ranks_become_those_of_fsdp(
    source: tuple[int, ...], names: tuple[str, ...], target: tuple[int, ...],
    sets: Callable[..., Path], tmp_path: Path,
) -> None:
    count = math.prod(target)
    succeed("ckpt-convert", sets(source, names), tmp_path / "out", "--to", "rank_files", "--tp", 1,
            "--world-size", count)
    in_processes(count, compare_files, tmp_path / "out", sets(target, names[:-1]), count)


MESHES = [((2, 2), HSDP, (2, 3), ("--shards", 3)), ((3, 2), TP, (2, 3), ("--tp", 3)),
          ((2, 2, 2), (*HSDP, "tp"), (2, 3, 2), ("--shards", 3, "--tp", 2))]


@pytest.mark.parametrize(("source", "names", "target", "options"), MESHES, ids=str)
def test_shards_and_tensor_parallel_ranks_are_those_of_another_mesh(
    source: tuple[int, ...], names: tuple[str, ...], target: tuple[int, ...], options: tuple,
    sets: Callable[..., Path], tmp_path: Path,
) -> None:
    count = math.prod(target)
    succeed("ckpt-convert", sets(source, names), tmp_path / "out", "--to", "rank_files",
            "--world-size", count, *options, "--verify")
    assert verify(tmp_path / "out")[0] == 0
    in_processes(count, compare_files, tmp_path / "out", sets(target, names), math.prod(source))


def test_reshard_is_the_same_and_the_way_back_gives_the_same_state(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    source = sets((3,))
    succeed("reshard", source, tmp_path / "five", "--world-size", 5)
    succeed("ckpt-convert", tmp_path / "five", tmp_path / "three", "--to", "rank_files",
            "--world-size", 3)
    for name in ("in", "out"):
        succeed("ckpt-convert", {"in": source, "out": tmp_path / "three"}[name],
                tmp_path / f"{name}.pt", "--to", "torch")
    check_equal(*(torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("out", "in")))
    assert {path.name for path in source.iterdir()} == {
        path.name for path in (tmp_path / "three").iterdir()}


def test_what_verl_puts_beside_them_has_the_new_number(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    source = tmp_path / "actor"
    source.mkdir()
    for path in sets((3,)).iterdir():
        (source / path.name).hardlink_to(path)
    config = '{\n    "FSDP_version": 2,\n    "world_size": %d\n}'
    (source / "fsdp_config.json").write_text(config % 3)
    (source / "huggingface").mkdir()
    (source / "huggingface/config.json").write_text("{}")
    told = succeed("ckpt-convert", source, tmp_path / "out", "--to", "rank_files",
                   "--world-size", 12).stdout
    assert (tmp_path / "out/fsdp_config.json").read_text() == config % 12
    assert (tmp_path / "out/huggingface/config.json").read_text() == "{}"
    assert "not carried" not in told, told


def step_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for i, param in enumerate(net.parameters()):
        torch.manual_seed(i)
        grad = torch.randn(param.shape)
        param.grad = grad if not isinstance(param, DTensor) else distribute_tensor(
            grad, param.device_mesh, param.placements, src_data_rank=None)
    optimizer.step()


def load_and_step(rank: int, count: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=count)
    model, optim = (torch.load(folder / f"{kind}_world_size_{count}_rank_{rank}.pt",
                               weights_only=False) for kind in ("model", "optim"))
    wanted = whole()[0]
    for name, value in model.items():
        found = value.full_tensor() if isinstance(value, DTensor) else value
        assert torch.equal(found, wanted[name]), name
    torch.manual_seed(5)
    net = fully_shard(Net(), mesh=init_device_mesh("cpu", (count,), mesh_dim_names=FSDP))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
    net.load_state_dict(model)
    optimizer.load_state_dict(optim)
    step_of(net, optimizer)
    torch.manual_seed(0)
    alone = Net()
    same = torch.optim.AdamW(alone.parameters(), lr=1.0)
    same.load_state_dict(states_of(alone)[1])
    step_of(alone, same)
    for (name, param), one in zip(net.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(param.full_tensor(), one), name
    dist.destroy_process_group()


def test_a_sharded_model_loads_them_and_takes_the_same_step(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    succeed("ckpt-convert", sets((3,)), tmp_path / "out", "--to", "rank_files",
            "--world-size", 7)
    in_processes(7, load_and_step, free_port(), tmp_path / "out")


def save_dcp(rank: int, count: int, port: int, folder: Path, named: bool) -> None:
    from torch.distributed.checkpoint import save
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=count)
    torch.manual_seed(0)
    net = fully_shard(Net(), mesh=init_device_mesh("cpu", (count,), mesh_dim_names=FSDP))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    optimizer.load_state_dict(states_of(net)[1])
    optim = get_optimizer_state_dict(net, optimizer) if named else optimizer.state_dict()
    extra = {"lr_scheduler": {"last_epoch": STEPS}, "rng": {"cpu": torch.tensor([0])}}
    save({"model": net.state_dict(), "optim": optim, "extra_state": extra}, checkpoint_id=folder)
    dist.destroy_process_group()


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by number"])
def test_a_dcp_folder_becomes_the_files_of_ranks(
    named: bool, sets: Callable[..., Path], tmp_path: Path
) -> None:
    in_processes(3, save_dcp, free_port(), tmp_path / "dcp", named)
    succeed("ckpt-convert", tmp_path / "dcp", tmp_path / "out", "--to", "rank_files",
            "--world-size", 7, "--mesh-device", "cpu", "--verify")
    in_processes(7, compare_files, tmp_path / "out", sets((7,)), 1, False)


# From files of ranks; from a Hugging Face folder, which says nothing of cuts.
def test_the_model_alone_becomes_files_of_ranks(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "hf").mkdir()
    succeed("ckpt-convert", sets((3,)), tmp_path / "hf/model.safetensors", "--model-only")
    (tmp_path / "hf/config.json").write_text('{"model_type": "llama", "architectures": ["X"]}')
    told = succeed("ckpt-convert", tmp_path / "hf", tmp_path / "five", "--to", "rank_files",
                   "--world-size", 5, "--mesh-device", "cpu").text
    assert "the 5 of floating point are cut by rows" in told and "others (1)" in told
    succeed("ckpt-convert", sets((3,)), tmp_path / "two", "--to", "rank_files", "--model-only",
            "--world-size", 2)
    for name, count, is_ordered in (("two", 2, True), ("five", 5, False)):
        assert len(list((tmp_path / name).iterdir())) == count
        in_processes(count, compare_files, tmp_path / name, sets((count,)), 3, is_ordered, True)


def test_a_buffer_of_each_ranks_own_is_not_lost_with_the_model_alone(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"seen": torch.tensor([rank])}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    line = refuse(4, "ckpt-convert", tmp_path, tmp_path / "out", "--to", "rank_files",
                  "--model-only", "--world-size", 3)
    assert "/model/seen" in line and "differs between ranks" in line


def test_what_a_source_does_not_tell_is_refused(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import save

    group = {"lr": 1.0, "params": ["w"]}
    save({"model": {"w": torch.ones(3), "frozen": torch.ones(3, 2)},
          "optim": {"param_groups": [group]}}, checkpoint_id=tmp_path / "whole", no_dist=True)
    save({"model": {"w": torch.ones(3)}, "optim": {"param_groups": {"w": {"lr": 1.0}}}},
         checkpoint_id=tmp_path / "flat", no_dist=True)
    save({"weight": torch.ones(3, 2), "step": 3}, checkpoint_id=tmp_path / "bare", no_dist=True)
    torch.save({"model": {"w": torch.ones(3)}}, tmp_path / "file.pt")
    for name, said in {"whole": "lies in one piece", "flat": "is keyed by a parameter's name",
                       "bare": "is not in model, optim or extra_state",
                       "file.pt": "expected files of FSDP's ranks"}.items():
        line = refuse(4, "ckpt-convert", tmp_path / name, tmp_path / "out", "--to", "rank_files",
                      "--world-size", 2)
        assert said in line


REFUSED = [((2, 2), HSDP, ("--world-size", 5), 4, "a multiple of 2 ranks, at least 4"),
           ((2, 2), HSDP, ("--world-size", 4, "--shards", 3), 4, "a multiple of 3 ranks"),
           ((2, 2), TP, ("--world-size", 3), 4, "a multiple of 2 ranks, as"),
           ((3,), FSDP, ("--world-size", 4, "--shards", 2), 4, "a mesh without replicas"),
           ((3,), FSDP, ("--world-size", 4, "--tp", 2), 4, "has not one dimension of tensor"),
           ((2, 2), TP, ("--world-size", 7, "--tp", 7), 4, "too few columns for 7"),
           ((3,), FSDP, ("--dp", 4), 2, "--world-size")]


@pytest.mark.parametrize(("sizes", "names", "size", "code", "said"), REFUSED, ids=str)
def test_what_is_not_cut_so_is_refused(
    sizes: tuple[int, ...], names: tuple[str, ...], size: tuple, code: int, said: str,
    sets: Callable[..., Path], tmp_path: Path,
) -> None:
    line = refuse(code, "ckpt-convert", sets(sizes, names), tmp_path / "out", "--to",
                  "rank_files", *size)
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_result_is_found_by_the_name_of_its_file(
    fault: str, sets: Callable[..., Path], tmp_path: Path
) -> None:
    succeed("ckpt-convert", sets((7,)), tmp_path / "out", "--to", "rank_files", "--world-size", 3)
    change, file, said = FAULTS[fault]
    change(tmp_path / "out")
    code, document = verify(tmp_path / "out")
    assert code == 1
    assert any(finding["file"] == file and said in finding["problem"]
               for finding in document["findings"]), document["findings"]

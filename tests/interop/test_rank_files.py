"""Files of FSDP's ranks, as verl names them, are one state: every element, and faults by name.

Each rank is a process of its own: PyTorch's "fake" group shards without a word between them. The
whole state is the same model's, not sharded.
"""

from __future__ import annotations

import io
import logging
import math
import multiprocessing
import pickle
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from programs import BIN, GOLDEN, refuse, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, MALFORMED = 1, 3
# Ranks, names of the mesh's dimensions. Sizes of no tensor are multiples of them.
MESHES = [((1,), ("fsdp",)), ((3,), ("fsdp",)), ((16,), ("fsdp",)), ((2, 3), ("ddp", "fsdp")),
          ((3, 2), ("fsdp", "tp")), ((2, 2, 2), ("ddp", "fsdp", "tp"))]
STEPS = 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 6)
        self.up = nn.Linear(6, 22, bias=False)
        self.down = nn.Linear(22, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("seen", torch.tensor([3, 4]))


def whole() -> tuple[dict, dict]:
    torch.manual_seed(0)
    return states_of(Net())


def states_of(net: nn.Module) -> tuple[dict, dict]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for param in net.parameters():
        optimizer.state[param] = {"step": torch.tensor(float(STEPS)),
                                  "exp_avg": param.detach() * 2, "exp_avg_sq": param.detach() ** 2}
    return net.state_dict(), optimizer.state_dict()


def sharded(sizes: tuple[int, ...], names: tuple[str, ...]) -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    if "tp" in names:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        # As the ranks of a run do it: each cuts what all of them made alike.
        parallelize_module(net, mesh["tp"], plan, src_data_rank=None)
    return fully_shard(net, mesh=mesh[tuple(name for name in names if name != "tp")])


def save_rank(folder: Path, rank: int, sizes: tuple[int, ...], names: tuple[str, ...]) -> None:
    count = math.prod(sizes)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    model, optimizer = states_of(sharded(sizes, names))
    torch.save(model, folder / f"model_world_size_{count}_rank_{rank}.pt")
    torch.save(optimizer, folder / f"optim_world_size_{count}_rank_{rank}.pt")
    extra = {"lr_scheduler": {"last_epoch": STEPS}, "rng": {"cpu": torch.tensor([rank])}}
    torch.save(extra, folder / f"extra_state_world_size_{count}_rank_{rank}.pt")


def save_ranks(folder: Path, sizes: tuple[int, ...], names: tuple[str, ...]) -> Path:
    folder.mkdir()
    ranks = [multiprocessing.get_context("fork").Process(
        target=save_rank, args=(folder, rank, sizes, names)) for rank in range(math.prod(sizes))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * len(ranks)
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    logging.disable(logging.WARNING)
    root, made = tmp_path_factory.mktemp("ranks"), {}

    def get(sizes: tuple[int, ...], names: tuple[str, ...]) -> Path:
        if sizes not in made:
            made[sizes] = save_ranks(root / "x".join(map(str, sizes)), sizes, names)
        return made[sizes]

    return get


def leaves(value: object, place: str = "") -> dict[str, object]:
    if not isinstance(value, dict | list):
        return {place: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for key, each in items for k, v in leaves(each, f"{place}/{key}").items()}


def check_equal(found: dict, wanted: dict) -> None:
    mine, theirs = leaves(found), leaves(wanted)
    assert mine.keys() == theirs.keys()
    for place, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert mine[place].dtype == value.dtype and torch.equal(mine[place], value), place
        else:
            assert mine[place] == value, place


@pytest.mark.parametrize(("sizes", "names"), MESHES, ids=str)
def test_ranks_are_put_together(
    sizes: tuple[int, ...], names: tuple[str, ...], sets: Callable[..., Path], tmp_path: Path
) -> None:
    require_whole(sets(sizes, names), math.prod(sizes), tmp_path)


def require_whole(folder: Path, ranks: int, tmp_path: Path) -> None:
    assert verify(folder)[0] == 0
    succeed("ckpt-convert", folder, tmp_path / "out.pt", "--to", "torch", "--verify")
    made = torch.load(tmp_path / "out.pt", weights_only=True)
    model, optimizer = whole()
    check_equal(made["model"], dict(model))
    check_equal(made["optim"], optimizer)
    assert made["extra_state"]["lr_scheduler"] == {"last_epoch": STEPS}
    own = made.get("ranks", {})
    assert {rank: value["/extra_state/rng/cpu"].item() for rank, value in own.items()} == {
        rank: rank for rank in range(1, ranks)}


class Built:
    """What a pickle builds, whatever its class."""

    def __init__(self, name: str) -> None:
        self.facts = [name]

    def __call__(self, *arguments: object) -> Built:
        made = Built("")
        made.facts = [*self.facts, arguments]
        return made

    def __setstate__(self, state: dict) -> None:
        self.facts.append({name: each for name, each in state.items() if name != "_hash"})

    def __setitem__(self, key: object, value: object) -> None:
        self.facts.append((key, value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Built) and self.facts == other.facts


class Builder(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Built:
        return Built(f"{module}.{name}")

    def persistent_load(self, pid: tuple) -> object:
        return [*pid[:2], pid[3]]  # neither its number, nor its size with what pads it

    def load_newobj(self) -> None:
        self.load_reduce()

    dispatch = {**pickle._Unpickler.dispatch, pickle.NEWOBJ[0]: load_newobj}


def built_of(path: Path) -> Built:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        return Builder(io.BytesIO(archive.read(name))).load()


# save_rank() with torch 2.15.0, whose meshes state a layout for each dimension. What it writes of
# other numbers of ranks was read by it, by hand; the way back gives what it wrote.
@pytest.mark.parametrize(("name", "ranks"), [("fsdp_tp", 6), ("ddp_fsdp", 4)])
def test_ranks_of_torch_2_15_are_put_together(name: str, ranks: int, tmp_path: Path) -> None:
    archive = GOLDEN / "rank_files_torch_2_15.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", tmp_path], check=True)
    source = tmp_path / name
    require_whole(source, ranks, tmp_path)
    for before, after, count in ((source, "other", 2 * ranks), (tmp_path / "other", "back", ranks)):
        succeed("ckpt-convert", before, tmp_path / after, "--to", "rank_files", "--world-size",
                count)
    for kind in ("model", "optim"):
        for rank in range(ranks):
            file = f"{kind}_world_size_{ranks}_rank_{rank}.pt"
            assert built_of(tmp_path / "back" / file) == built_of(source / file), file


def test_the_state_gets_into_every_format(sets: Callable[..., Path], tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    folder = sets(*MESHES[3])
    model, optimizer = whole()
    succeed("ckpt-convert", folder, tmp_path / "model.safetensors", "--to", "safetensors",
            "--model-only")
    check_equal(load_file(tmp_path / "model.safetensors"), dict(model))
    succeed("ckpt-convert", folder, tmp_path / "dcp", "--to", "torch_dist", "--verify")
    loaded = {"model": {name: torch.zeros_like(value) for name, value in model.items()}}
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp", no_dist=True)
    check_equal(loaded["model"], dict(model))
    assert succeed("ckpt-inspect", "diff", folder, tmp_path / "dcp").code == 0
    page = succeed("ckpt-inspect", folder).stdout
    assert "files of 6 ranks of FSDP" in page and f"step {STEPS}" in page


def test_a_digest_and_a_difference_are_those_of_the_whole_state(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    three, six = sets((3,), ("fsdp",)), sets((2, 3), ("ddp", "fsdp"))
    digests = {succeed("ckpt-inspect", "hash", folder, "--include", "model*", "--json").json()
               ["digest"] for folder in (three, six)}
    assert len(digests) == 1
    succeed("ckpt-inspect", "diff", three, six, "--include", "model*", "--include", "optim*")
    state = torch.load(three / "model_world_size_3_rank_1.pt", weights_only=False)
    changed = shutil.copytree(three, tmp_path / "changed")
    with torch.no_grad():
        state["up.weight"].to_local()[0, 0] += 1
    torch.save(state, changed / "model_world_size_3_rank_1.pt")
    assert run("ckpt-inspect", "diff", three, changed).code == 1


def renamed(folder: Path, *names: str) -> None:
    first, second = (folder / name for name in names)
    first.rename(folder / "between")
    second.rename(first)
    (folder / "between").rename(second)


def from_another_save(folder: Path) -> None:
    path = folder / "optim_world_size_3_rank_2.pt"
    state = torch.load(path, weights_only=False)
    state["state"][0]["step"] += 1
    torch.save(state, path)


MODEL, OPTIM = "model_world_size_3_rank_{}.pt", "optim_world_size_3_rank_{}.pt"
EXTRA = "extra_state_world_size_3_rank_{}.pt"
# What happens to three ranks' files, what is said, of which file.
FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (lambda f: (f / MODEL.format(1)).unlink(), MODEL.format(1), "is missing"),
    "optimizer missing": (lambda f: (f / OPTIM.format(0)).unlink(), OPTIM.format(0), "is missing"),
    "swapped": (lambda f: renamed(f, MODEL.format(0), MODEL.format(2)), MODEL.format(0),
                "was saved by rank 2, and is called rank 0's"),
    "random states swapped": (lambda f: renamed(f, EXTRA.format(0), EXTRA.format(1)),
                              EXTRA.format(1), f"was saved as {EXTRA.format(0)}"),
    "copied": (lambda f: shutil.copyfile(f / OPTIM.format(1), f / OPTIM.format(2)),
               OPTIM.format(2), "was saved by rank 1, and is called rank 2's"),
    "cut": (lambda f: (f / MODEL.format(2)).write_bytes(
        (f / MODEL.format(2)).read_bytes()[:3000]), MODEL.format(2), "truncated"),
    "another save": (from_another_save, OPTIM.format(2), "is of another save"),
    "scheduler of another save": (lambda f: torch.save(
        torch.load(f / EXTRA.format(1)) | {"lr_scheduler": {"last_epoch": STEPS - 1}},
        f / EXTRA.format(1)), EXTRA.format(1), "'/extra_state/lr_scheduler/last_epoch'"),
    "another kind": (lambda f: shutil.copyfile(f / MODEL.format(1), f / OPTIM.format(1)),
                     OPTIM.format(1), "of which other ranks have parts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_name_of_its_file(
    fault: str, sets: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sets(*MESHES[1]), tmp_path / "set"))
    change, file, said = FAULTS[fault]
    change(folder)
    code, document = verify(folder)
    assert code == DAMAGED
    assert any(finding["file"] == file and said in finding["problem"]
               for finding in document["findings"]), document["findings"]
    assert refuse(MALFORMED, "ckpt-convert", folder, tmp_path / "out.pt", "--to", "torch")
    assert not (tmp_path / "out.pt").exists()


def test_files_of_another_number_of_ranks_are_of_another_save(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sets(*MESHES[1]), tmp_path / "set"))
    other = "model_world_size_6_rank_4.pt"
    shutil.copyfile(sets(*MESHES[3]) / other, folder / other)
    code, document = verify(folder)
    assert code == DAMAGED
    assert [(each["file"], "two saves" in each["problem"]) for each in document["findings"]
            if each["severity"] == "damage"] == [(other, True)]
    (folder / other).rename(folder / MODEL.format(1))
    code, document = verify(folder)
    assert code == DAMAGED
    assert any("was saved by one of 6 ranks" in each["problem"] for each in document["findings"])


def test_flat_parameters_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"_fsdp_wrapped_module._flat_param": torch.arange(4.0) + rank},
                   tmp_path / f"model_world_size_2_rank_{rank}.pt")
    said = refuse(4, "ckpt-convert", tmp_path, tmp_path / "out.pt", "--to", "torch")
    assert "flat parameter of FSDP" in said


def test_a_row_that_all_ranks_have_beside_dtensors_is_no_flat_state(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sets(*MESHES[1]), tmp_path / "set"))
    for rank in range(3):
        state = torch.load(folder / OPTIM.format(rank), weights_only=False)
        state["state"][0]["row"] = torch.arange(4.0)
        torch.save(state, folder / OPTIM.format(rank))
    succeed("ckpt-convert", folder, tmp_path / "out.pt", "--to", "torch")
    made = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(made["optim"]["state"][0]["row"], torch.arange(4.0))


def test_flat_states_of_fsdp1_stay_with_their_ranks(
    sets: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sets(*MESHES[1]), tmp_path / "set"))
    for rank in range(3):
        state = {"step": torch.tensor(5.0), "exp_avg": torch.arange(4.0) + rank}
        torch.save({"state": {0: state}, "param_groups": [{"lr": 0.1, "params": [0]}]},
                   folder / OPTIM.format(rank))
    assert verify(folder)[0] == 0
    assert "3 ranks of FSDP1" in succeed("ckpt-inspect", folder).stdout
    succeed("ckpt-convert", folder, tmp_path / "out.pt", "--to", "torch")
    made = torch.load(tmp_path / "out.pt", weights_only=True)
    assert made["optim"]["state"][0]["exp_avg"] is None
    for rank in range(3):
        own = made["ranks"][rank]["/optim/state/0/exp_avg"]
        assert torch.equal(own, torch.arange(4.0) + rank)
    line = refuse(4, "ckpt-convert", folder, tmp_path / "out", "--to", "rank_files",
                  "--world-size", 2)
    assert "/optim/state/0/exp_avg" in line and "differs between ranks" in line


def save_whole_dicts(folder: Path) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model, _ = states_of(sharded((2,), ("fsdp",)))
    dcp.save({"model": model}, checkpoint_id=folder, no_dist=True,
             planner=DefaultSavePlanner(flatten_state_dict=False))


def test_a_dcp_object_that_is_a_part_is_not_called_whole(tmp_path: Path) -> None:
    """PyTorch keeps one rank's copy of it: the others' parts are nowhere."""
    saver = multiprocessing.get_context("fork").Process(target=save_whole_dicts,
                                                        args=(tmp_path / "dcp",))
    saver.start()
    saver.join()
    code, document = verify(tmp_path / "dcp")
    assert code == 0
    assert document["not_proven"][0]["what"] == "that 'model' is whole"
    assert "this file holds part 1 of 2" in document["not_proven"][0]["reason"]

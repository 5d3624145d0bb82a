"""Files of FSDP1's ranks, whose optimizer has flat parameters, for another number of ranks.

Real ranks save, as verl does, and load what we made. The oracle is FSDP's own way between numbers
of ranks: whole states, by name.
"""

from __future__ import annotations

import copy
import itertools
import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from programs import BIN, refuse, succeed, verify
from test_rank_files_for_other_ranks import compare, free_port, in_processes

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

KINDS = ("model", "optim", "extra_state")


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 1)
        self.up = nn.Linear(6, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) * self.gate(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.down = nn.Linear(11, 6, bias=False)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(self.inner(x)))


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Net(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 6)
        self.layers = nn.ModuleList([Block(), Block()])
        self.tiny = Tiny()
        self.head = nn.Linear(6, 13, bias=False)
        self.register_buffer("seen", torch.tensor([3, 4]))
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.tiny(x))


@dataclass
class Case:
    units: set[type]
    ranks: int = 3
    mesh: tuple[int, ...] | None = (3,)  # None: ShardedTensors
    tied: bool = False
    orig: bool = False  # use_orig_params
    frozen: tuple[str, ...] = ()
    groups: int = 1
    named: bool = False
    options: dict = field(default_factory=dict)

    def params_of(self, net: nn.Module) -> list:
        groups: list[dict] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
        for name, param in net.named_parameters():
            in_second = self.groups == 2 and ("bias" in name or "norm" in name)
            groups[in_second]["params"].append((name, param) if self.named else param)
        return groups[: self.groups]


CASES = {
    "layers": Case({Block}),
    "nested": Case({Block, Inner, Tiny}),
    "tied": Case({Block}, tied=True),
    "root alone": Case(set(), tied=True),
    "sharded": Case({Block, Tiny}, mesh=None),
    "replicas": Case({Block}, 4, (2, 2)),
    "parameters": Case({Block}, orig=True),
    "nested parameters": Case({Block, Inner, Tiny}, orig=True, groups=2, named=True),
    "two groups": Case({Block}, orig=True, groups=2),
    "tied parameters": Case({Block}, tied=True, orig=True, mesh=None),
    "frozen parameters": Case({Block}, orig=True, frozen=("inner.up", "norm.bias")),
    "replicas of parameters": Case({Block, Inner}, 4, (2, 2), orig=True, options={
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16)}),
}


def sharded(case: str, mesh: tuple[int, ...] | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    of = CASES[case]
    torch.manual_seed(0)
    alone = Net(of.tied)
    for name, param in alone.named_parameters():
        param.requires_grad_(not any(part in name for part in of.frozen))
    names = ("ddp", "fsdp")[-len(mesh):] if mesh else ()
    net = FullyShardedDataParallel(
        alone, auto_wrap_policy=ModuleWrapPolicy(of.units), device_id=torch.device("cpu"),
        sharding_strategy=(ShardingStrategy.HYBRID_SHARD if mesh and len(mesh) == 2
                           else ShardingStrategy.FULL_SHARD),
        device_mesh=init_device_mesh("cpu", mesh, mesh_dim_names=names) if mesh else None,
        use_orig_params=of.orig, **of.options)
    return net, torch.optim.AdamW(of.params_of(net), lr=1e-2)


def step_of(net: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    torch.manual_seed(100 * number)
    net(torch.randint(0, 13, (4, 5))).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def sharded_kind(net: nn.Module) -> object:  # as verl; of one rank torch has whole states alone
    is_whole = dist.get_world_size() == 1
    kind = StateDictType.FULL_STATE_DICT if is_whole else StateDictType.SHARDED_STATE_DICT
    configs = ((FullStateDictConfig(), FullOptimStateDictConfig()) if is_whole
               else (ShardedStateDictConfig(), ShardedOptimStateDictConfig()))
    return FullyShardedDataParallel.state_dict_type(net, kind, *configs)


def whole_kind(net: nn.Module) -> object:
    return FullyShardedDataParallel.state_dict_type(
        net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False),
        FullOptimStateDictConfig(rank0_only=False))


def whole_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """One moment at a time: with use_orig_params torch puts all of them into one CPU tensor."""
    all_states, wholes = dict(optimizer.state), []
    with whole_kind(net):
        for moment in ("exp_avg", "exp_avg_sq"):
            for param, state in all_states.items():
                optimizer.state[param] = {name: state[name] for name in ("step", moment)}
            wholes.append(copy.deepcopy(FullyShardedDataParallel.optim_state_dict(net, optimizer)))
        optimizer.state.update(all_states)
        for name, state in wholes[0]["state"].items():
            state.update(wholes[1]["state"][name])
        return {"model": copy.deepcopy(net.state_dict()), "optim": wholes[0]}


def states_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    with sharded_kind(net):
        return {"model": net.state_dict(), "optim": optimizer.state_dict(),
                "extra_state": {"lr_scheduler": {"last_epoch": 2},
                                "rng": {"cpu": torch.tensor([dist.get_rank()])}}}


def file_of(folder: Path, kind: str) -> Path:
    return folder / f"{kind}_world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"


def start(rank: int, count: int, port: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=count)


def save(rank: int, count: int, port: int, root: Path, cases: list[str]) -> None:
    start(rank, count, port)
    for case in cases:
        net, optimizer = sharded(case, CASES[case].mesh)
        step_of(net, optimizer, 1)
        for kind, state in states_of(net, optimizer).items():
            torch.save(state, file_of(root / case, kind))
        whole = whole_of(net, optimizer)
        if rank == 0:
            torch.save(whole, root / case / "whole")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ranks saved, of each case, and `whole`, their live state."""
    logging.disable(logging.WARNING)
    root = tmp_path_factory.mktemp("fsdp1")
    for case in CASES:
        (root / case).mkdir()
    for count, orig in itertools.product((3, 4), (False, True)):
        in_processes(count, save, free_port(), root,
                     [name for name, case in CASES.items()
                      if (case.ranks, case.orig) == (count, orig)])
    return root


def load(rank: int, count: int, port: int, root: Path, out: Path, cases: list[str],
         shards: int) -> None:
    """Ours are the files that ranks with the whole state save, load, and step as they do."""
    start(rank, count, port)
    for case in cases:
        mesh = CASES[case].mesh
        sizes = (count // shards, shards) if mesh and len(mesh) == 2 else (count,)
        wanted = torch.load(root / case / "whole", weights_only=False)
        net, optimizer = sharded(case, sizes if mesh else None)
        with whole_kind(net):
            net.load_state_dict(wanted["model"])
            optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(
                net, optimizer, wanted["optim"]))
        made = {kind: torch.load(file_of(out / case, kind), weights_only=False) for kind in KINDS}
        for kind, theirs in states_of(net, optimizer).items():
            if kind != "extra_state":
                compare_states(made[kind], theirs, f"{case} {kind}")
        same, of_same = sharded(case, sizes if mesh else None)
        with sharded_kind(same):
            same.load_state_dict(made["model"])
            of_same.load_state_dict(made["optim"])
        compare(whole_of(same, of_same), wanted, case)
        step_of(net, optimizer, 2)
        step_of(same, of_same, 2)
        compare(whole_of(same, of_same), whole_of(net, optimizer), f"{case}, next step")
    dist.destroy_process_group()


def compare_states(ours: dict, theirs: dict, place: str) -> None:
    def plain(value: object) -> object:  # ShardedTensors as what they are made of
        if isinstance(value, dict):
            return type(value)({key: plain(each) for key, each in value.items()})
        if type(value).__name__ != "ShardedTensor":
            return value
        return [value.dtype, value.size(), value.metadata(), value.sharding_spec(),
                [[shard.tensor, shard.metadata] for shard in value.local_shards()]]

    compare(plain(ours), plain(theirs), place)


WANTED = [
    (1, ["sharded", "nested parameters"]),
    (2, ["nested", "tied", "tied parameters", "frozen parameters"]),
    (4, ["layers", "sharded", "parameters", "nested parameters"]),
    (6, ["replicas"]), (6, ["replicas of parameters"])]  # which number their process groups
SHARDS = {"replicas": 3}  # the source has 2


@pytest.mark.parametrize(("count", "cases"), WANTED, ids=str)
def test_real_ranks_load_them_and_take_the_same_step(
    count: int, cases: list[str], sets: Path, tmp_path: Path
) -> None:
    for case in cases:
        shards = ("--shards", SHARDS[case]) if case in SHARDS else ()
        succeed("ckpt-convert", sets / case, tmp_path / case, "--to", "rank_files",
                "--world-size", count, *shards, "--verify")
        assert verify(tmp_path / case)[0] == 0
    in_processes(count, load, free_port(), sets, tmp_path, cases, SHARDS.get(cases[0], 2))


def test_flat_parameters_are_put_together(sets: Path, tmp_path: Path) -> None:
    sizes = {"layers": [157, 162, 162], "nested": [156, 78, 84, 78, 84, 1],
             "tied": [79, 162, 162], "root alone": [403], "replicas": [157, 162, 162]}
    for case, wanted in sizes.items():
        succeed("ckpt-convert", sets / case, tmp_path / case, "--to", "torch", "--verify")
        state = torch.load(tmp_path / case, weights_only=True)["optim"]["state"]
        assert [each["exp_avg"].numel() for each in state.values()] == wanted, case
        whole = torch.load(sets / case / "whole", weights_only=False)["optim"]["state"]
        if case == "nested":
            inner = [whole[f"layers.0.inner.{name}"]["exp_avg"].flatten()
                     for name in ("gate.weight", "gate.bias", "up.weight", "up.bias")]
            assert torch.equal(state[2]["exp_avg"], torch.cat(inner))


@pytest.mark.parametrize("case", [
    case for case in CASES if CASES[case].orig and case != "two groups"])
def test_parts_of_parameters_are_put_together(case: str, sets: Path, tmp_path: Path) -> None:
    succeed("ckpt-convert", sets / case, tmp_path / "out", "--to", "torch", "--verify")
    made = torch.load(tmp_path / "out", weights_only=True)
    whole = torch.load(sets / case / "whole", weights_only=False)
    names = [name for group in whole["optim"]["param_groups"] for name in group["params"]]
    assert list(made["optim"]["state"]) == [
        number for number, name in enumerate(names) if name in whole["optim"]["state"]]
    for number, state in made["optim"]["state"].items():
        compare(state, whole["optim"]["state"][names[number]], names[number])


def changed(folder: Path, rank: int, change: Callable[[dict], object]) -> None:
    path = folder / f"optim_world_size_3_rank_{rank}.pt"
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def lengthened(state: dict) -> None:
    state["state"][1]["exp_avg"] = torch.zeros(99)


def swap_states(folder: Path, *ranks: int) -> None:
    paths = [folder / OPTIM.format(rank) for rank in ranks]
    states = [torch.load(path, weights_only=False) for path in paths]
    for path, state in zip(paths, reversed(states), strict=True):
        torch.save(state, path)


OPTIM, MODEL = "optim_world_size_3_rank_{}.pt", "model_world_size_3_rank_{}.pt"
FAULTS: dict[str, tuple[str, Callable[[Path], object], str, str]] = {
    "length": ("layers", lambda f: changed(f, 1, lengthened), OPTIM.format(1),
               "has other than 54 elements in '/optim/state/1/exp_avg'"),
    "missing": ("layers", lambda f: (f / OPTIM.format(2)).unlink(), OPTIM.format(2), "is missing"),
    "lacks a state": ("layers", lambda f: changed(f, 0, lambda s: s["state"][1].pop("exp_avg")),
                      OPTIM.format(0), "of which other ranks have parts"),
    "iteration": ("layers", lambda f: changed(f, 2, lambda s: s["state"][0]["step"].add_(1)),
                  OPTIM.format(2), "is of another save"),
    "swapped": ("layers", lambda f: shutil.copyfile(f / OPTIM.format(0), f / OPTIM.format(1)),
                OPTIM.format(1), "was saved as optim_world_size_3_rank_0.pt"),
    "length of a part": ("nested parameters", lambda f: changed(f, 0, lengthened),
                         OPTIM.format(0), "in '/optim/state/1/exp_avg'"),
    "lacks a part": ("parameters", lambda f: changed(f, 2, lambda s: s["state"][5].pop("exp_avg")),
                     OPTIM.format(2), "of which other ranks have parts"),
    "lacks a parameter": ("parameters", lambda f: changed(f, 2, lambda s: s["state"].pop(5)),
                          OPTIM.format(2), "of which other ranks have parts"),
    "sharded": ("sharded", lambda f: shutil.copyfile(f / MODEL.format(0), f / MODEL.format(1)),
                MODEL.format(1), "was saved by rank 0, and is called rank 1's"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_name_of_its_file(fault: str, sets: Path, tmp_path: Path) -> None:
    case, change, file, said = FAULTS[fault]
    folder = Path(shutil.copytree(sets / case, tmp_path / "set"))
    change(folder)
    code, document = verify(folder)
    assert code == 1
    assert any(finding["file"] == file and said in finding["problem"]
               for finding in document["findings"]), document["findings"]
    refuse(3, "ckpt-convert", folder, tmp_path / "out", "--to", "rank_files", "--world-size", 2)


def test_sizes_that_fit_in_two_ways_are_refused(sets: Path, tmp_path: Path) -> None:
    line = refuse(4, "ckpt-convert", sets / "nested", tmp_path / "out", "--to", "rank_files",
                  "--world-size", 5)
    assert "fit flat parameter 2 in more than one way" in line


def test_parts_that_are_not_put_together_stay_with_their_ranks(
    sets: Path, tmp_path: Path
) -> None:
    swapped = Path(shutil.copytree(sets / "parameters", tmp_path / "swapped"))
    swap_states(swapped, 0, 2)
    for folder, reason in ((sets / "two groups", "do not tell which parameters they are of"),
                           (swapped, "no choice of modules has the elements that ranks have")):
        assert reason in " ".join(succeed("ckpt-inspect", folder).stdout.split())
        code, document = verify(folder)
        assert code == 0
        assert any(reason in each["reason"] for each in document["not_proven"])
        line = refuse(4, "ckpt-convert", folder, tmp_path / "out", "--to", "rank_files",
                      "--world-size", 2)
        assert "part of a flat parameter of FSDP1" in line


def test_parts_are_not_written_without_the_model(sets: Path, tmp_path: Path) -> None:
    line = refuse(4, "ckpt-convert", sets / "parameters", tmp_path / "out", "--to", "rank_files",
                  "--world-size", 2, "--exclude", "model.head.weight")
    assert "parameters of the model are left out" in line


def other_states(folder: Path) -> None:  # of another model
    for rank in range(3):
        changed(folder, rank, lambda state: state["state"][0].update(exp_avg=torch.zeros(7)))


def test_sizes_that_no_modules_have_are_refused(sets: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sets / "layers", tmp_path / "set"))
    other_states(folder)
    line = refuse(4, "ckpt-convert", folder, tmp_path / "out", "--to", "rank_files",
                  "--world-size", 2)
    assert "part of a flat parameter of FSDP1" in line

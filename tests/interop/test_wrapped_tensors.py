"""Tensors that wrap others, or are one rank's part, are called what they are, and never whole.

Each row: how torch makes the tensor, what listings call it, and the exit code of a conversion to
each format. A device mesh needs no process group to be saved; FSDP1 does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.two_tensor import TwoTensor

from programs import BIN, Outcome, refuse, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DONE, UNSUPPORTED = 0, 4
NUMBERS = torch.arange(12.0).reshape(3, 4)


def mesh_of(*sizes: int, names: tuple[str, ...] | None = None, rank: int = 1) -> DeviceMesh:
    ranks = torch.arange(int(torch.tensor(sizes).prod())).reshape(sizes)
    return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=rank)


def placed(mesh: DeviceMesh, placements: list, shape: tuple[int, ...]) -> DTensor:
    stride = (shape[1], 1)
    return DTensor.from_local(
        NUMBERS, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


class Holder:
    def __init__(self, held: object):
        self.held = held


class Attributed(torch.Tensor):
    """A subclass with nothing of its own."""


class Row(NamedTuple):
    make: Callable[[], object]
    words: str  # in every listing; empty: nothing is said
    shape: str | None  # of ls
    torch_dist: int
    safetensors: int
    also_plain: int  # --to safetensors, where the file has a plain tensor beside it


FSDP = ("fsdp",)
PART = (UNSUPPORTED,) * 3
PARTS = {
    "shard": Row(
        lambda: placed(mesh_of(4, names=FSDP), [Shard(0)], (10, 4)),
        "DTensor, Shard(0) on mesh ('fsdp',) of size 4: this file holds part 2 of 4",
        "[3, 4] of [10, 4]",
        *PART,
    ),
    "of columns": Row(
        lambda: placed(mesh_of(4), [Shard(1)], (3, 16)),
        "DTensor, Shard(1) on a mesh of size 4: this file holds part 2 of 4",
        "[3, 4] of [3, 16]",
        *PART,
    ),
    "of two dimensions": Row(
        lambda: placed(mesh_of(2, 3, names=("dp", "tp"), rank=4), [Shard(0), Shard(1)], (6, 12)),
        "DTensor, Shard(0), Shard(1) on mesh ('dp', 'tp') of size 2 x 3: "
        "this file holds part 5 of 6",
        "[3, 4] of [6, 12]",
        *PART,
    ),
    "replicated and sharded": Row(
        lambda: placed(mesh_of(2, 2, names=("dp", "tp")), [Replicate(), Shard(1)], (3, 8)),
        "DTensor, Replicate(), Shard(1) on mesh ('dp', 'tp') of size 2 x 2: "
        "this file holds part 2 of 2",
        "[3, 4] of [3, 8]",
        *PART,
    ),
    "strided": Row(
        lambda: placed(mesh_of(2), [_StridedShard(0, split_factor=2)], (6, 4)),
        "DTensor, _StridedShard(0, 2) on a mesh of size 2: this file holds part 2 of 2",
        "[3, 4] of [6, 4]",
        *PART,
    ),
    "partial": Row(
        lambda: placed(mesh_of(2), [Partial()], (3, 4)),
        "DTensor, Partial(sum) on a mesh of size 2: this file holds one rank's summand of it",
        "[3, 4] of [3, 4]",
        *PART,
    ),
    "replicated": Row(
        lambda: placed(mesh_of(2), [Replicate()], (3, 4)),
        "DTensor, Replicate() on a mesh of size 2: every rank holds all of it",
        "[3, 4]",
        *PART,
    ),
    "a parameter": Row(
        lambda: nn.Parameter(placed(mesh_of(2), [Shard(0)], (6, 4))),
        "DTensor, Shard(0) on a mesh of size 2: this file holds part 2 of 2",
        "[3, 4] of [6, 4]",
        *PART,
    ),
    "in a tuple": Row(
        lambda: (1, placed(mesh_of(2), [Shard(0)], (6, 4))),
        "DTensor, Shard(0) on a mesh of size 2: this file holds part 2 of 2",
        "[3, 4] of [6, 4]",
        *PART,
    ),
    "in an object": Row(
        lambda: Holder(placed(mesh_of(2), [Shard(0)], (6, 4))),
        "DTensor, Shard(0) on a mesh of size 2: this file holds part 2 of 2",
        "[3, 4] of [6, 4]",
        *PART,
    ),
}

# What is not a part of anything: an object for formats that have objects, lost by name elsewhere.
OBJECT = (DONE, UNSUPPORTED, DONE)
PLAIN = (DONE, DONE, DONE)
WHOLE = {
    "wrapper": Row(lambda: TwoTensor(NUMBERS, NUMBERS + 1), "", None, *OBJECT),
    "wrapper as parameter": Row(
        lambda: nn.Parameter(TwoTensor(NUMBERS, NUMBERS + 1)), "", None, *OBJECT
    ),
    "jagged": Row(
        lambda: torch.nested.nested_tensor(
            [torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged
        ),
        "",
        None,
        *OBJECT,
    ),
    "masked": Row(lambda: torch.masked.masked_tensor(NUMBERS, NUMBERS > 3), "", None, *OBJECT),
    "in an object": Row(lambda: Holder(NUMBERS), "", None, *OBJECT),
    "subclass": Row(lambda: NUMBERS.as_subclass(Attributed), "", "[3, 4]", *PLAIN),
    "parameter": Row(lambda: nn.Parameter(NUMBERS), "", "[3, 4]", *PLAIN),
    "buffer": Row(lambda: nn.Buffer(NUMBERS), "", "[3, 4]", *PLAIN),
}

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (lambda: NUMBERS.to_sparse(), "_rebuild_sparse_tensor"),
    "sparse rows": (lambda: NUMBERS.to_sparse_csr(), "_rebuild_sparse_tensor"),
    "sparse blocks": (lambda: torch.eye(4).to_sparse_bsc((2, 2)), "_rebuild_sparse_tensor"),
    "quantised": (
        lambda: torch.quantize_per_tensor(NUMBERS, 0.1, 0, torch.qint8),
        "_rebuild_qtensor",
    ),
    "quantised by channel": (
        lambda: torch.quantize_per_channel(NUMBERS, torch.ones(3), torch.zeros(3), 0, torch.qint8),
        "_rebuild_qtensor",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "_rebuild_nested_tensor",
    ),
    "meta": (lambda: torch.empty(2, 3, device="meta"), "_rebuild_meta_tensor_no_storage"),
    "conjugate": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conj"),
    "negative": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "neg"),
}


def saved(value: object, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(value, path)
    return path


def listings(path: Path, key: str = "w*") -> dict[str, Outcome]:
    """Every command that reads one checkpoint, each of which must be done."""
    outcomes = {
        "page": run("ckpt-inspect", path),
        "ls": run("ckpt-inspect", "ls", path),
        "tree": run("ckpt-inspect", "tree", path),
        "show": run("ckpt-inspect", "show", path, key),
        "hash": run("ckpt-inspect", "hash", path),
        "verify": run("ckpt-inspect", "verify", path),
    }
    for command in ("ls", "tree", "hash", "verify"):
        succeed("ckpt-inspect", command, path, "--json")
    succeed("ckpt-inspect", path, "--json")
    for outcome in outcomes.values():
        assert outcome.code == DONE, outcome
    return outcomes


def words_of(outcome: Outcome) -> str:
    return " ".join(outcome.text.split())


@pytest.mark.parametrize("name", PARTS)
def test_every_command_calls_a_part_a_part(name: str, tmp_path: Path) -> None:
    row = PARTS[name]
    path = saved({"w": row.make(), "plain": torch.ones(2)}, tmp_path / "made.pt")
    for command, outcome in listings(path).items():
        assert row.words in words_of(outcome), (command, outcome)
    assert row.shape in succeed("ckpt-inspect", "ls", path).text
    entries = succeed("ckpt-inspect", "ls", path, "--json").json()["tensors"]
    (entry,) = [entry for entry in entries if "part_of" in entry]
    assert entry["part_of"]["text"] == row.words
    assert entry["part_of"]["whole"] == (name == "replicated")
    shape = entry["shape"] if name == "replicated" else entry["part_of"]["shape"]
    assert row.shape.endswith(str(shape))


def check_conversions(value: object, row: Row, tmp_path: Path) -> None:
    codes = {"torch_dist": row.torch_dist, "safetensors": row.safetensors}
    for target, code in codes.items():
        path = saved({"w": value}, tmp_path / f"alone_{target}.pt")
        check_conversion(path, tmp_path / f"alone_{target}", target, code)
    path = saved({"w": value, "plain": torch.ones(2)}, tmp_path / "beside.pt")
    check_conversion(path, tmp_path / "beside_st", "safetensors", row.also_plain)


def check_conversion(path: Path, out: Path, target: str, code: int) -> None:
    if code != DONE:
        refuse(code, "ckpt-convert", path, out, "--to", target)
        assert not out.exists()
        return
    outcome = succeed("ckpt-convert", path, out, "--to", target, "--json").json()
    succeed("ckpt-inspect", "verify", out)
    if target == "safetensors":
        listed = succeed("ckpt-inspect", "ls", out, "--json").json()["total"]["tensors"]
        assert listed > 0, outcome


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_written_where_it_can_be_called_one_alone(name: str, tmp_path: Path) -> None:
    row = PARTS[name]
    check_conversions(row.make(), row, tmp_path)
    path = saved({"w": row.make(), "plain": torch.ones(2)}, tmp_path / "made.pt")
    line = refuse(UNSUPPORTED, "ckpt-convert", path, tmp_path / "out", "--to", "torch_dist")
    assert row.words.split(":")[0] in line.replace("\\'", "'") and "'w" in line
    out = tmp_path / "carried.pt"
    succeed("ckpt-convert", path, out, "--to", "torch", "--verify")
    succeed("ckpt-inspect", "diff", path, out)
    for to in ("torch_dist", "safetensors"):
        options = ("--to", to, "--exclude", "w*")
        succeed("ckpt-convert", path, tmp_path / f"rest_{to}", *options)


def is_same(made: object, loaded: object) -> bool:
    if isinstance(made, DTensor):
        return (
            isinstance(loaded, DTensor)
            and made.placements == loaded.placements
            and made.device_mesh.mesh.equal(loaded.device_mesh.mesh)
            and made.shape == loaded.shape
            and made.to_local().equal(loaded.to_local())
        )
    return isinstance(made, tuple) and all(map(is_same, made[1:], loaded[1:]))


@pytest.mark.parametrize("name", [name for name in PARTS if name != "in an object"])
def test_torch_loads_a_carried_part_as_it_was(name: str, tmp_path: Path) -> None:
    made = PARTS[name].make()
    path = saved({"w": made, "plain": torch.ones(2)}, tmp_path / "made.pt")
    succeed("ckpt-convert", path, tmp_path / "out.pt", "--to", "torch", "--exclude", "plain")
    assert is_same(made, torch.load(tmp_path / "out.pt", weights_only=False)["w"])


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_whole_is_not_called_a_part(name: str, tmp_path: Path) -> None:
    row = WHOLE[name]
    path = saved({"w": row.make(), "plain": torch.ones(2)}, tmp_path / "made.pt")
    for outcome in listings(path).values():
        assert "this file holds" not in outcome.text and " of [" not in outcome.text, outcome
    check_conversions(row.make(), row, tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_every_command(name: str, tmp_path: Path) -> None:
    make, mention = REFUSED[name]
    path = saved({"w": make(), "plain": torch.ones(2)}, tmp_path / "made.pt")
    for command in (["ls"], ["tree"], ["show"], ["hash"], ["verify"], []):
        key = ["w"] if command == ["show"] else []
        assert mention in refuse(UNSUPPORTED, "ckpt-inspect", *command, path, *key)
    for target in ("torch", "torch_dist", "safetensors"):
        refuse(UNSUPPORTED, "ckpt-convert", path, tmp_path / "out", "--to", target)
        assert not (tmp_path / "out").exists()


# --- what is selected cannot be held at all ---

EMPTY = {
    "objects alone": ({"epoch": 3, "name": "x"}, (), "safetensors"),
    "only objects selected": ({"epoch": 3, "w": NUMBERS}, ("--include", "epoch"), "safetensors"),
    "wrapped ones alone": ({"a": TwoTensor(NUMBERS, NUMBERS)}, (), "safetensors"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_result_of_nothing_is_refused(name: str, tmp_path: Path) -> None:
    content, options, target = EMPTY[name]
    path = saved(content, tmp_path / "made.pt")
    out = tmp_path / "out"
    line = refuse(UNSUPPORTED, "ckpt-convert", path, out, "--to", target, *options)
    assert "empty" in line and not out.exists()


# --- FSDP1 ---

FLAT = {  # use_orig_params, state dict type or None for named_parameters() -> words
    (False, "LOCAL_STATE_DICT"): ["flat parameter of FSDP, ShardedTensor: this file holds part 1"],
    (True, "LOCAL_STATE_DICT"): [
        "flat parameter of FSDP, ShardedTensor: this file holds part 1 of 2",
        "flat shard of FSDP: one rank's elements of it",
    ],
    (False, "SHARDED_STATE_DICT"): ["ShardedTensor: this file holds part 1 of 2"],
    (True, "SHARDED_STATE_DICT"): ["ShardedTensor: this file holds part 1 of 2"],
    (False, None): ["flat parameter of FSDP: one rank's elements of several parameters"],
    (True, None): ["flat tensor inside FSDP (_fsdp_wrapped_module): one rank's elements of it"],
}


def save_of_fsdp(folder: Path, case: tuple) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    use_orig_params, kind = case
    wrapped = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3)),
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
    )
    if kind is None:
        state = {name: each.detach() for name, each in wrapped.named_parameters()}
    else:
        with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType[kind]):
            state = dict(wrapped.state_dict())
    saved(state, folder / f"{use_orig_params}_{kind}_world_size_2_rank_{dist.get_rank()}.pt")


def save_all_of_fsdp(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in FLAT:
        save_of_fsdp(folder, case)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_fsdp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks of FSDP1 save."""
    folder = tmp_path_factory.mktemp("fsdp")
    torch.multiprocessing.spawn(save_all_of_fsdp, (folder,), nprocs=2)
    return folder


@pytest.mark.parametrize("case", FLAT, ids=str)
def test_the_shards_of_fsdp_are_called_so(case, of_fsdp: Path, tmp_path: Path) -> None:
    path = of_fsdp / f"{case[0]}_{case[1]}_world_size_2_rank_0.pt"
    for command, outcome in listings(path, "*").items():
        for words in FLAT[case]:
            assert words in words_of(outcome) or command == "show", (command, outcome)
    for target in ("torch_dist", "safetensors"):
        refuse(UNSUPPORTED, "ckpt-convert", path, tmp_path / "out", "--to", target)
    succeed("ckpt-convert", path, tmp_path / "out.pt", "--to", "torch", "--verify")
    succeed("ckpt-inspect", "diff", path, tmp_path / "out.pt")


def test_parameters_that_fsdp_gathered_are_whole(tmp_path: Path) -> None:
    state = {"_fsdp_wrapped_module.w": torch.ones(2, 3), "_fsdp_wrapped_module.b": torch.ones(2)}
    path = saved(state, tmp_path / "made.pt")
    succeed("ckpt-convert", path, tmp_path / "out.safetensors", "--to", "safetensors")

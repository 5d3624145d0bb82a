"""`ckpt-inspect verify` on what ranks state: parameter groups, files of every layout, and files
that context-parallel ranks have overwritten."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import damage as bad
from programs import BIN, GOLDEN, damage_of, refuse, run, succeed, verify
from reading import iteration_folder, load, model_file, rank_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SOUND, DAMAGED, MALFORMED = 0, 1, 3
TORCH = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
TORCH_DP4 = GOLDEN / "lw_muon_bf16_torch_dp4" / "ckpt"
OVERWRITTEN = "context-parallel ranks overwrote each other's file"


# --- groups --------------------------------------------------------------------------------------


def group_of(optimizers: list, number: int = 0) -> dict:
    return optimizers[0]["optimizer"]["param_groups"][number]


def lack_lr(optimizers: list) -> None:
    del group_of(optimizers)["lr"]


def add_setting(optimizers: list) -> None:
    group_of(optimizers)["extra"] = 1


def other_lr(optimizers: list) -> None:
    group_of(optimizers)["lr"] *= 2


def other_lr_by_one_bit(optimizers: list) -> None:
    group = group_of(optimizers)
    group["lr"] = float(torch.nextafter(torch.tensor(group["lr"]).double(), torch.tensor(1.0)))


def add_step(optimizers: list) -> None:
    group_of(optimizers)["step"] = 3


def other_nested_setting(optimizers: list) -> None:
    group_of(optimizers)["betas"] = (0.5, 0.6)


GROUPS = (
    (1, lack_lr, "lr",
     "rank 0 of mp_rank_00 has 'lr' in this group, but rank 1 of mp_rank_00 does not"),
    (0, lack_lr, "lr",
     "rank 1 of mp_rank_00 has 'lr' in this group, but rank 0 of mp_rank_00 does not"),
    (0, add_setting, "extra", "rank 0 of mp_rank_00 has 'extra' in this group, but rank 1"),
    (1, add_setting, "extra", "rank 1 of mp_rank_00 has 'extra' in this group, but rank 0"),
    (0, add_step, "step", "rank 0 of mp_rank_00 has 'step' in this group, but rank 1"),
    (1, add_step, "step", "rank 1 of mp_rank_00 has 'step' in this group, but rank 0"),
    (1, other_lr, "lr", "'lr' differs from its value on rank 0 of mp_rank_00 in this group"),
    (1, other_lr_by_one_bit, "lr",
     "'lr' differs from its value on rank 0 of mp_rank_00 in this group"),
    (0, other_nested_setting, "betas", "rank 0"),
)


def edit_rank(root: Path, rank: int, change: Callable) -> None:
    bad.edit_rank(rank, change)(root)
    if rank == 0:  # the model file repeats it
        repeated = load(rank_file(root, 0))
        bad.edit_model(lambda tree: tree.update(optimizer=repeated))(root)


@pytest.mark.parametrize(("rank", "change", "key", "problem"), GROUPS)
def test_a_group_that_ranks_state_otherwise_is_found_and_not_converted(
    rank: int, change: Callable, key: str, problem: str, copied, tmp_path: Path
) -> None:
    root = copied(TORCH)
    edit_rank(root, rank, change)
    code, document = verify(root)
    assert code == DAMAGED, document
    (said,) = damage_of(document)
    assert said.startswith("iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt ")
    assert f"/0/optimizer/param_groups/0/{key} " in said and problem in said
    for program, *options in (("ckpt-convert", "--to", "torch_dist"), ("reshard", "--dp", "4")):
        line = refuse(MALFORMED, program, root, tmp_path / "made", *options)
        assert problem in line
        assert not (tmp_path / "made").exists()


def empty_the_group(optimizers: list) -> None:
    """As a rank writes a group of which it owns nothing; the count is then missing, too."""
    group_of(optimizers).pop("step", None)
    group_of(optimizers)["params"] = []


def test_a_group_without_parameters_may_lack_its_step_count(copied) -> None:
    root = copied(TORCH)
    for rank in (0, 1):
        edit_rank(root, rank, add_step)
    bad.edit_rank(1, empty_the_group)(root)
    said = damage_of(verify(root)[1])
    assert said and not any("'step'" in problem for problem in said)  # the deal no longer fits


# --- the folders of other layouts ----------------------------------------------------------------


def set_args(path: Path, **values: object) -> None:
    bad.edit_file(path / "model_optim_rng.pt", lambda tree: vars(tree["args"]).update(values))


def two_tensor_ranks(root: Path) -> Path:
    folder = iteration_folder(root)
    shutil.copytree(folder / "mp_rank_00", folder / "mp_rank_01")
    for name in ("mp_rank_00", "mp_rank_01"):
        set_args(folder / name, tensor_model_parallel_size=2, expert_tensor_parallel_size=2,
                 world_size=4, rank=int(name[-1]))
    return folder


def two_stages(root: Path) -> Path:
    folder = iteration_folder(root)
    shutil.copytree(folder / "mp_rank_00", folder / "mp_rank_00_001")
    (folder / "mp_rank_00").rename(folder / "mp_rank_00_000")
    for name in ("mp_rank_00_000", "mp_rank_00_001"):
        set_args(folder / name, pipeline_model_parallel_size=2, world_size=4,
                 rank=2 * int(name[-1]))
    return folder


LAYOUTS = (two_tensor_ranks, two_stages)


def last_rank_file(folder: Path) -> Path:
    return sorted(folder.glob("mp_rank_*/layer_wise_optimizer_*.pt"))[-1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["model_optim_rng.pt", "layer_wise_optimizer"])
def test_a_file_that_a_rank_of_the_layout_writes_must_be_there(
    layout: Callable, name: str, copied
) -> None:
    folder = layout(copied(TORCH))
    gone = last_rank_file(folder)
    if name == "model_optim_rng.pt":
        gone = gone.parent / name
    gone.unlink()
    code, document = verify(folder.parent)
    assert code == DAMAGED
    # Two whole models are no halves of one, which their args contradict.
    (line,) = [each for each in damage_of(document) if not each.startswith(" args.")]
    assert line.startswith(f"iter_0000003/{gone.relative_to(folder)} ") and "is missing" in line


def test_a_folder_that_a_rank_of_the_layout_writes_must_be_there(copied) -> None:
    folder = two_stages(copied(TORCH))
    shutil.rmtree(folder / "mp_rank_00_001")
    code, document = verify(folder.parent)
    assert code == DAMAGED and "mp_rank_00_001" in damage_of(document)[0]


def test_a_rank_file_too_many_is_found_in_other_layouts(copied) -> None:
    folder = two_tensor_ranks(copied(TORCH))
    stale = folder / "mp_rank_01/layer_wise_optimizer_2.pt"
    shutil.copyfile(folder / "mp_rank_01/layer_wise_optimizer_1.pt", stale)
    code, document = verify(folder.parent)
    assert code == DAMAGED
    assert any("mp_rank_01/layer_wise_optimizer_2.pt" in said for said in damage_of(document))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_group_that_another_folder_states_otherwise_is_found(layout: Callable, copied) -> None:
    folder = layout(copied(TORCH))
    bad.edit_file(last_rank_file(folder), lack_lr)
    code, document = verify(folder.parent)
    assert code == DAMAGED
    name = f"{last_rank_file(folder).relative_to(folder)} "
    (said,) = (said for said in damage_of(document) if name in said and "'lr'" in said)
    assert "rank 0 of mp_rank_00" in said and "has 'lr' in this group" in said


# --- context parallelism -------------------------------------------------------------------------


def overwrite_half(root: Path) -> None:
    """Of 4 ranks, the files of which 2 x 2 data- and context-parallel ranks leave two."""
    for rank in (2, 3):
        rank_file(root, rank).unlink()
    bad.edit_args(context_parallel_size=2, data_parallel_size=2, world_size=4)(root)


def test_files_that_context_parallel_ranks_overwrote_are_named(copied) -> None:
    root = copied(TORCH_DP4)
    overwrite_half(root)
    code, document = verify(root)
    assert code == DAMAGED
    (said,) = damage_of(document)
    assert OVERWRITTEN in said and "mp_rank_00/layer_wise_optimizer_0.pt" in said
    text = run("ckpt-inspect", "verify", root).stdout
    assert OVERWRITTEN in text and "damaged: " in text


def write_over(root: Path) -> None:
    """A shorter archive over the beginning of a longer one: rank 1 had two writers."""
    contents = sorted((rank_file(root, rank).read_bytes() for rank in (0, 1)), key=len)
    shorter, longer = contents
    rank_file(root, 1).write_bytes(shorter + longer[len(shorter) :])


def test_a_file_that_two_ranks_wrote_at_once_is_named(copied) -> None:
    root = copied(TORCH)
    write_over(root)
    assert run("ckpt-inspect", "verify", root).code == MALFORMED  # nothing says why
    bad.edit_args(context_parallel_size=2, data_parallel_size=2, world_size=4)(root)
    for path in (root, iteration_folder(root)):
        code, document = verify(path)
        assert code == DAMAGED and not document["sound"]
        (said,) = damage_of(document)
        assert "mp_rank_00/layer_wise_optimizer_1.pt" in said and OVERWRITTEN in said
        assert document["not_checked"][0]["what"] == "all other files"
    assert OVERWRITTEN in run("ckpt-inspect", "verify", root).stdout


def test_the_model_of_a_context_parallel_run_must_be_readable_to_say_so(copied) -> None:
    root = copied(TORCH)
    bad.edit_args(context_parallel_size=2)(root)
    write_over(root)
    model_file(root).write_bytes(b"")
    assert run("ckpt-inspect", "verify", root).code == MALFORMED


# --- frozen parameters ---------------------------------------------------------------------------


def forget(optimizers: list, number: int, group: int, place: int) -> torch.Tensor:
    """One parameter of a rank's file: its master, its state and its index; returns the master."""
    optimizer = optimizers[number]
    state, groups = optimizer["optimizer"]["state"], optimizer["optimizer"]["param_groups"]
    master = optimizer["fp32_from_fp16_params"][group].pop(place)
    del state[groups[group]["params"].pop(place)]
    optimizer["optimizer"]["state"] = dict(enumerate(state.values()))
    first = 0
    for each in groups:
        each["params"] = list(range(first, first + len(each["params"])))
        first += len(each["params"])
    return master.data


def edit_alone(root: Path, change: Callable) -> None:
    """The one rank's file, and its copy in the model file."""
    edit_rank(root, 0, change)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The golden checkpoint with one data-parallel rank, which owns all."""
    succeed("reshard", TORCH, tmp_path / "alone", "--dp", "1")
    (tmp_path / "alone/shardwise-proof.json").unlink()  # what was promised is going to be changed
    return tmp_path / "alone"


@pytest.mark.parametrize(("number", "group", "place"), [(0, 0, 0), (0, 0, 3), (1, 0, 0), (1, 1, 5)])
def test_a_frozen_parameter_is_no_damage(number: int, group: int, place: int, alone: Path) -> None:
    masters = []
    edit_alone(alone, lambda optimizers: masters.append(forget(optimizers, number, group, place)))
    weights = load(model_file(alone))["model"]
    rounded = masters[0].to(torch.bfloat16)
    (name,) = (n for n, w in weights.items() if w is not None and torch.equal(w, rounded))
    code, document = verify(alone)
    assert code == SOUND, damage_of(document)
    assert [left["what"] for left in document["not_proven"]] == [f"weight '{name}'"]
    assert document["not_checked"] == [] and document["checked"]["masters"] == 28
    code, document = verify(alone, "--quick")
    assert code == SOUND and len(document["not_proven"]) == 1
    assert run("ckpt-inspect", "latest", alone).code == SOUND


@pytest.mark.parametrize("options", [(), ("--quick",)])
def test_a_lost_parameter_is_damage_where_the_deal_says_so(options: tuple, copied) -> None:
    root = copied(TORCH)
    edit_rank(root, 1, lambda optimizers: forget(optimizers, 0, 0, 0))
    code, document = verify(root, *options)
    assert code == DAMAGED, document
    assert any("the ping-pong deal" in said for said in damage_of(document))


def test_a_master_that_fits_no_weight_freezes_nothing(alone: Path) -> None:
    def edit(optimizers: list) -> None:
        forget(optimizers, 0, 0, 0)
        optimizers[0]["fp32_from_fp16_params"][0][0].data.view(-1)[0] += 1

    edit_alone(alone, edit)
    assert verify(alone)[0] == DAMAGED


@pytest.mark.parametrize("number", [0, 1])
def test_an_optimizer_that_is_gone_froze_nothing(number: int, alone: Path) -> None:
    """Megatron's ChainedOptimizer has a list only of two and more."""
    edit_alone(alone, lambda optimizers: optimizers.pop(number))
    code, document = verify(alone)
    assert code == DAMAGED, document
    assert any("lists 1 optimizer" in said for said in damage_of(document))

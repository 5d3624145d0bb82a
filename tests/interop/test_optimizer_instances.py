"""num_distributed_optimizer_instances: copies of the whole state of a DistributedOptimizer among
the data-parallel ranks, of which Megatron saves one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from damage import edit_file
from parallel_sets import check_logical_state, expect_none
from parallel_twins import Twins
from programs import GOLDEN, hash_of, refuse, succeed, verify
from reading import iteration_folder

RUNS = GOLDEN / "runs"
FORMATS = ("torch", "torch_dist")
MALFORMED, UNSUPPORTED = 3, 4
INSTANCES = "num_distributed_optimizer_instances"


def of_instances(checkpoint_format: str, count: int) -> Path:
    return RUNS / f"instances_moe_{checkpoint_format}_{count}"


def with_instances(count: int, tmp_path: Path, **more: object) -> Path:
    root = tmp_path / "ckpt"
    shutil.copytree(of_instances("torch", 1) / "ckpt", root, copy_function=shutil.copyfile)
    for path in iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt"):
        edit_file(path, lambda state: vars(state["args"]).update({INSTANCES: count, **more}))
    return root


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_the_state_of_two_instances_is_that_of_the_run(checkpoint_format: str, tmp_path) -> None:
    check_logical_state(of_instances(checkpoint_format, 2), tmp_path)


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_two_instances_are_sound(checkpoint_format: str) -> None:
    assert verify(of_instances(checkpoint_format, 2) / "ckpt")[0] == 0


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_one_instance_is_written_as_megatron_writes_one(checkpoint_format: str, tmp_path) -> None:
    made = tmp_path / "made"
    report = succeed("ckpt-convert", of_instances(checkpoint_format, 2) / "ckpt", made,
                     "--to", checkpoint_format)
    assert "2 optimizer instances" in report.text
    expect_none(Twins(made, of_instances(checkpoint_format, 1) / "ckpt").differences())


def test_the_logical_hash_does_not_see_instances() -> None:
    one, *others = [hash_of(of_instances(checkpoint_format, count) / "ckpt", "--logical")["digest"]
                    for checkpoint_format in FORMATS for count in (1, 2)]
    assert others == [one] * 3


def test_instances_that_do_not_divide_the_ranks_are_refused(tmp_path: Path) -> None:
    text = refuse(MALFORMED, "ckpt-convert", with_instances(3, tmp_path), tmp_path / "made",
                  "--to", "torch")
    assert INSTANCES in text and "does not divide" in text


def test_a_layer_wise_optimizer_of_several_instances_is_refused(tmp_path: Path) -> None:
    root = with_instances(2, tmp_path, use_layer_wise_distributed_optimizer=True,
                          use_distributed_optimizer=False)
    text = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "made", "--to", "torch")
    assert INSTANCES in text

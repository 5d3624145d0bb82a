"""Megatron-Core 0.18 files LayerWise state as Megatron 0.20-dev does, Muon beside a
DistributedOptimizer, but keeps the common state in common.pt. The sets are by core_v0.18.2."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_sets import check_logical_state, expect_none
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import GOLDEN, hash_of, run, succeed, verify
from reading import iteration_folder

RUNS = GOLDEN / "runs"
ONE, FOUR, BY_NAME = (RUNS / f"core018_{name}" for name in (
    "dp_reshardable_dp1", "dp_reshardable_tp2dp2", "fully_reshardable_dp1"))
# Random states and counters of other ranks.
OF_RANKS = ("rerun_state_machine", "rng_state/")


def differences(made: Path, theirs: Path) -> list[str]:
    ignored = {"/rng_state", "/rerun_state_machine"} | NAMES_OF_MODULES
    return Twins(made, theirs / "ckpt", with_values=False, ignored=ignored,
                 without_keys=OF_RANKS).differences()


@pytest.mark.parametrize("source", (ONE, FOUR, BY_NAME), ids=lambda path: path.name)
def test_the_state_is_that_of_the_run(source: Path, tmp_path: Path) -> None:
    check_logical_state(source, tmp_path)
    assert verify(source / "ckpt")[0] == 0
    assert "core 0.18" in succeed("ckpt-inspect", source / "ckpt").stdout


@pytest.mark.parametrize(("source", "sizes", "theirs"), (
    (FOUR, ("--tp", 1, "--dp", 1), ONE), (ONE, ("--tp", 2, "--dp", 2), FOUR)), ids=("down", "up"))
def test_other_sizes_are_what_megatron_writes_at_them(
    source: Path, sizes: tuple, theirs: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    succeed("reshard", source / "ckpt", made, *sizes)
    expect_none(differences(made, theirs))
    assert hash_of(made, "--logical")["digest"] == hash_of(source / "ckpt", "--logical")["digest"]


@pytest.mark.parametrize("through", ("2026-08", "2026-04"))
def test_the_way_through_another_layout_gives_what_0_18_wrote(
    through: str, tmp_path: Path
) -> None:
    other, made = tmp_path / "other", tmp_path / "made"
    succeed("ckpt-convert", ONE / "ckpt", other, "--to", "torch_dist", "--target-megatron", through)
    assert (iteration_folder(other) / "common.pt").exists() == (through == "2026-04")
    succeed("ckpt-convert", other, made, "--to", "torch_dist", "--target-megatron", "0.18",
            "--optimizer-sharding", "dp_reshardable")
    lost = ["common.pt /args: keys [] | ['inference_cuda_graph_scope']"]  # April has no such class
    assert differences(made, ONE) == (lost if through == "2026-04" else [])


def test_the_half_becomes_what_0_18_writes_by_name(tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("ckpt-convert", ONE / "ckpt", made, "--to", "torch_dist", "--optimizer-sharding",
            "fully_reshardable")
    expect_none(differences(made, BY_NAME))


def test_rank_files_are_refused(tmp_path: Path) -> None:
    outcome = run("ckpt-convert", ONE / "ckpt", tmp_path / "made", "--to", "torch",
                  "--target-megatron", "0.18")
    assert outcome.code == 4 and "from 0.18 on writes no `torch`" in outcome.stderr

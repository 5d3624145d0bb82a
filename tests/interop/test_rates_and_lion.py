"""Groups with a learning rate of their own, which core 0.19 tells apart, and Lion.

tests/golden/rates_and_lion.tar.xz: runs of Megatron-LM d98e8a64dd, `zero1_rates*` and `lion*` of
scripts/golden/run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from damage import edit_file
from parallel_sets import DAMAGED, SOUND, check_state, expect_none
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import BIN, GOLDEN, damage_of, logical_digest, refuse, run, succeed, verify
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

RATES = ("torch_dp2", "torch_dist_dp2", "torch_dist_fully_dp2", "torch_dist_fully_tp2dp2")
SOUND_SETS = [*(f"zero1_rates_{name}" for name in RATES), "lion_torch_dist_dp2",
              "lion_torch_dist_tp2dp2", "lion_muon_torch_dist_fully_dp2"]
OF_RANKS = NAMES_OF_MODULES | {"/rng_state", "/rerun_state_machine", "/args/@sequence_parallel"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rates")
    subprocess.run(["tar", "-xJf", GOLDEN / "rates_and_lion.tar.xz", "-C", folder], check=True)
    return folder


def family_of(name: str) -> str:
    return name.split("_torch")[0]


@pytest.mark.parametrize("name", SOUND_SETS)
def test_the_state_is_that_of_the_run(name: str, runs: Path, tmp_path: Path) -> None:
    check_state(runs / name, runs / f"{family_of(name)}.safetensors", tmp_path)
    code, document = verify(runs / name)
    assert (code, document["not_checked"]) == (SOUND, [])


@pytest.mark.parametrize(("name", "other", "words"), [
    ("zero1_rates_torch_dist_fully_dp2", "zero1_rates_torch_dist_fully_tp2dp2", ()),
    ("zero1_rates_torch_dp2", "zero1_rates_torch_dist_fully_tp2dp2",
     ("--to", "torch_dist", "--optimizer-sharding", "fully_reshardable", "--target-megatron",
      "2026-08")),
    ("lion_torch_dist_dp2", "lion_torch_dist_tp2dp2", ()),
])
def test_other_sizes_are_what_megatron_writes_at_them(
    name: str, other: str, words: tuple, runs: Path, tmp_path: Path
) -> None:
    """Settings of groups in them, too."""
    made = tmp_path / "made"
    program = "ckpt-convert" if words else "reshard"
    succeed(program, runs / name, made, *words, "--tp", 2, "--dp", 2)
    assert logical_digest(made) == logical_digest(runs / name) == logical_digest(runs / other)
    expect_none(Twins(made, runs / other, with_attributes=False, ignored=OF_RANKS,
                      without_keys=("rerun_state_machine", "rng_state/")).differences())


def test_flat_buffers_are_what_megatron_writes(runs: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    succeed("ckpt-convert", runs / "zero1_rates_torch_dist_fully_tp2dp2", made, "--to", "torch",
            "--tp", 1, "--dp", 2)
    expect_none(Twins(made, runs / "zero1_rates_torch_dp2", ignored=OF_RANKS).differences())


# What the second group states; whether Megatron tells it from the first, and by what.
CHANGES = {"max_lr": ({}, "core 0.19 does, by max_lr"),
           "a weight decay": ({"max_lr": 0.01, "min_lr": 0.001, "start_wd": 0.2}, "by start_wd"),
           "nothing": ({"max_lr": 0.01, "min_lr": 0.001, "start_wd": None}, "")}


@pytest.mark.parametrize("change", CHANGES)
def test_groups_are_damage_only_where_no_release_tells_them_apart(
    change: str, runs: Path, tmp_path: Path
) -> None:
    settings, words = CHANGES[change]
    root = tmp_path / "ckpt"
    subprocess.run(["cp", "-r", runs / "zero1_rates_torch_dp2", root], check=True)

    def edit(tree: dict) -> None:
        tree["optimizer"]["optimizer"]["param_groups"][1].update(settings)

    edit_file(iteration_folder(root) / "mp_rank_00/model_optim_rng.pt", edit)
    code, document = verify(root)
    if words:
        assert code == SOUND and words in document["not_proven"][0]["reason"]
    else:
        assert code == DAMAGED and "cannot distinguish it from group 0" in damage_of(document)[0]


def test_second_moments_that_megatron_loses_beside_lion_are_damage(runs: Path) -> None:
    """--optimizer lion --use-distributed-optimizer: it stores what Lion has, of Adam's, too."""
    code, document = verify(runs / "lion_zero1_torch_dist_fully_dp2")
    assert code == DAMAGED
    assert all("optimizer.state.exp_avg_sq." in problem for problem in damage_of(document))


def without_optimizer(tree: dict) -> None:
    del tree["optimizer"]


def without_random_states(tree: dict) -> None:
    del tree["rng_state"]


@pytest.mark.parametrize(("change", "words"), [
    (without_optimizer, "KeyError"), (without_random_states, "Unable to load rng state")])
def test_what_was_not_saved_does_not_load(
    change: Callable, words: str, runs: Path, tmp_path: Path
) -> None:
    """--no-save-optim and --no-save-rng, as core 0.19.0 loads what they leave."""
    root = tmp_path / "ckpt"
    subprocess.run(["cp", "-r", runs / "zero1_rates_torch_dp2", root], check=True)
    rank = iteration_folder(root) / "mp_rank_00"
    edit_file(rank / "model_optim_rng.pt", change)
    if change is without_optimizer:
        (rank / "distrib_optim.pt").unlink()
    outcome = run("ckpt-inspect", "can-load", root, "--target-megatron", "0.19")
    assert outcome.code == 1 and words in outcome.stdout, outcome


def test_groups_of_mup_are_refused_and_no_damage(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    subprocess.run(["cp", "-r", runs / "zero1_rates_torch_dp2", root], check=True)
    edit_file(iteration_folder(root) / "mp_rank_00/model_optim_rng.pt",
              lambda tree: setattr(tree["args"], "use_mup", True))
    assert verify(root)[0] == SOUND
    assert "muP" in refuse(4, "ckpt-convert", root, tmp_path / "out", "--to", "torch_dist")

"""The step after a checkpoint gives the state that Megatron's own next step gave, at the sizes that
it was saved at and at others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from comparing import bytes_of
from parallel_pairs import FAMILIES, Set, Sizes, all_sets, sizes
from parallel_sets import DAMAGED, IS_LONG, Reshards, load_canonical, needs_sets
from programs import BIN, run, succeed

pytestmark = [
    needs_sets,
    pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built"),
]

# Megatron recorded a further step at these sizes. Of blockwise Muon the step depends on TP.
STEPPED = {"dp4", "tp2dp2", "ep2dp2"}
SETS = [s for s in all_sets() if s.layout in STEPPED]
OF_ANY_SIZES = [s for s in SETS if s.family.name != "blockwise"]
DENSE = (sizes(), sizes(pp=2, dp=2), sizes(tp=2, pp=2, dp=2))
EXPERTS = (sizes(), sizes(pp=2, ep=2, dp=2), sizes(ep=4, dp=4))
RECORDINGS = {"par_adam_fp16": "family_fp16", "par_lw_muon": "family_gpt",
              "par_lw_muon_blockwise": "family_gpt"}


def recording(sets: Path, source: Set) -> Path:
    named = source.family.prefix.replace("par_lw_muon_", "family_")
    return sets / RECORDINGS.get(source.family.prefix, named)


def replay(sets: Path, source: Set, root: Path) -> dict:
    folder = recording(sets, source)
    steps = json.loads((folder / "family.json").read_text())["steps"]
    outcome = run(
        "step-replay", "run", root, "--grads", folder / "grads.safetensors", "--first", steps,
        "--steps", 1, "--expect", sets / source.name / "expected/next_state.safetensors", "--json",
    )
    assert outcome.code == 0, outcome
    return outcome.json()


def targets(source: Set) -> tuple[Sizes, ...]:
    if not source.family.keeps_rows:
        return (sizes(tp=2, pp=2),)  # as many rows
    chosen = EXPERTS if source.sizes.ep > 1 else DENSE
    return chosen if IS_LONG else chosen[:2]


def test_every_recorded_step_is_replayed(sets: Path) -> None:
    recorded = {path.parents[1].name for kind in ("par_lw", "par_adam")
                for path in sets.glob(f"{kind}_*/expected/next_state.safetensors")}
    assert {s.name for s in SETS} == recorded
    assert {s.family.name for s in SETS} >= {f.name for f in FAMILIES} - {
        "tied", "gpt, batch of 24"
    }


@pytest.mark.parametrize("source", SETS, ids=lambda s: s.name)
def test_the_next_step_is_megatrons(source: Set, sets: Path) -> None:
    replay(sets, source, sets / source.name / "ckpt")


@pytest.mark.parametrize(
    "source, target", [(s, target) for s in OF_ANY_SIZES for target in targets(s)],
    ids=lambda value: value.name if isinstance(value, Set) else value.tag,
)
def test_the_next_step_is_megatrons_at_other_sizes(
    source: Set, target: Sizes, sets: Path, reshards: Reshards
) -> None:
    replay(sets, source, reshards.make(sets / source.name / "ckpt", target).root)


def test_a_step_with_gradients_of_another_one_is_not(sets: Path) -> None:
    """What is compared can differ: the same replay with the gradients of the step before."""
    source = sets / "par_lw_muon_torch_dist_tp2dp2"
    outcome = run(
        "step-replay", "run", source / "ckpt", "--grads", sets / "family_gpt/grads.safetensors",
        "--first", 2, "--steps", 1, "--expect", source / "expected/next_state.safetensors",
    )
    assert outcome.code == DAMAGED, outcome


def test_parts_that_ranks_orthogonalised_alone_are_not_the_whole(sets: Path) -> None:
    source = sets / "par_lw_muon_blockwise_torch_tp2dp2"
    outcome = run(
        "step-replay", "run", source / "ckpt", "--grads", sets / "family_gpt/grads.safetensors",
        "--first", 3, "--steps", 1, "--expect", source / "expected/next_state.safetensors",
        "--tp-mode", "duplicated", "--json",
    )
    divergence = outcome.json()["expected"]["divergence"]
    assert outcome.code == DAMAGED and divergence["first_part"] == "orthogonalization", outcome


def test_a_blockwise_step_is_written_whole(sets: Path, tmp_path: Path) -> None:
    outcome = step_and_write("par_lw_muon_blockwise_torch_tp2dp2", "family_gpt", sets,
                             tmp_path / "stepped")
    assert outcome.code == 0, outcome
    source = sets / "par_lw_muon_blockwise_torch_tp2dp2"
    outcome = run("step-replay", "run", source / "ckpt", "--grads",
                  sets / "family_gpt/grads.safetensors", "--first", 3, "--steps", 1, "--expect",
                  tmp_path / "stepped", "--atol", 0, "--json")
    assert outcome.json()["expected"]["identical"], outcome


def test_the_step_changes_what_it_is_taken_from(sets: Path) -> None:
    expected = sets / "par_lw_muon_torch_dist_tp2dp2/expected"
    before = load_canonical(expected / "state.safetensors")
    after = load_canonical(expected / "next_state.safetensors")
    assert all(bytes_of(before[name]) != bytes_of(after[name]) for name in before
               if name.startswith("optimizer.state.fp32_param"))


def test_the_stepped_state_is_written_at_the_sizes_of_the_checkpoint(
    sets: Path, tmp_path: Path
) -> None:
    made, folders = tmp_path / "stepped", ["mp_rank_00", "mp_rank_01"]
    outcome = step_and_write("par_lw_muon_torch_tp2dp2", "family_gpt", sets, made)
    assert outcome.code == 0, outcome
    succeed("ckpt-inspect", "verify", made)
    assert sorted(path.name for path in made.glob("iter_*/mp_rank_*")) == folders


def test_a_loss_scale_behind_the_step_is_not_guessed(sets: Path, tmp_path: Path) -> None:
    made = tmp_path / "stepped"
    outcome = step_and_write("par_adam_fp16_torch_tp2dp2", "family_fp16", sets, made)
    assert outcome.code == 4 and "grad_scaler" in outcome.stderr, outcome
    assert not made.exists()


def step_and_write(source: str, family: str, sets: Path, made: Path):
    steps = json.loads((sets / family / "family.json").read_text())["steps"]
    return run("step-replay", "run", sets / source / "ckpt", "--grads",
               sets / family / "grads.safetensors", "--first", steps, "--steps", 1, "-o", made)


def test_a_moment_that_is_nan_is_named(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_lw_muon_torch_dp4"
    expected = load_file(source / "expected/next_state.safetensors")
    name = next(key for key in expected if key.startswith("exp_avg_sq."))
    expected[name] = expected[name].clone()
    expected[name].view(-1)[1] = torch.nan
    save_file(expected, tmp_path / "expected.safetensors")
    folder = sets / "family_gpt"
    outcome = run(
        "step-replay", "run", source / "ckpt", "--grads", folder / "grads.safetensors", "--first",
        json.loads((folder / "family.json").read_text())["steps"], "--steps", 1, "--expect",
        tmp_path / "expected.safetensors",
    )
    said = f"exp_avg_sq of '{name.removeprefix('exp_avg_sq.')}' holds NaN or infinity in what is"
    assert outcome.code == DAMAGED and said in outcome.stdout, outcome

"""ZeRO-1 state in every form: what is read is what Megatron had in memory, ranks
own what Megatron recorded, one state is one state in every layout, and what Megatron saved wrongly
is told. All sets where SHARDWISE_LONG_TESTS is set, else some of each form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from parallel_sets import (
    DAMAGED,
    MALFORMED,
    SOUND,
    UNSUPPORTED,
    check_logical_state,
    expect_none,
    needs_sets,
    recorded_state,
    state_differences,
)
from programs import BIN, damage_of, logical_digest, refuse, run, succeed, verify
from zero1_sets import ALL, FAULTS, NAMES, SAMPLE

pytestmark = needs_sets


def test_every_set_of_these_forms_is_in_the_table(sets: Path) -> None:
    forms = ("par_*fully_reshardable*", "par_*fully_sharded*", "par_*dp_reshardable*",
             "par_*dp_zero*",
             "par_*do_adam*_torch_*", "par_head_lw_*")
    there = {path.name for form in forms for path in sets.glob(form)}
    assert there == {*ALL, *FAULTS}
    assert set(SAMPLE) <= set(ALL)


@pytest.mark.parametrize("name", NAMES)
def test_the_logical_state_is_that_of_the_live_objects(
    name: str, sets: Path, tmp_path: Path
) -> None:
    check_logical_state(sets / name, tmp_path)


def owned_elements(recorded: list[dict]) -> set[tuple]:
    """(rank, parameter, optimizer, first element, behind the last) of the rank's own tensors."""
    return {(rank["rank"], owned["name"], owned["optimizer"], owned.get("start", 0),
             owned.get("start", 0) + owned["numel"])
            for rank in recorded for owned in rank["owned"]}


def shown_elements(document: dict) -> set[tuple]:
    def of(parameter: dict) -> tuple[int, int]:
        elements = parameter.get("elements")
        if elements is None:
            return 0, math.prod(parameter["shape"])
        return elements["begin"], elements["end"]

    return {(p["rank"], p["key"], p["optimizer"], *of(p)) for p in document["parameters"]}


@pytest.mark.parametrize("name", [name for name in NAMES if "_to_" not in name])
def test_ranks_own_what_megatron_recorded(name: str, sets: Path) -> None:
    recorded = json.loads((sets / name / "expected/ranks.json").read_text())
    shown = shown_elements(succeed("ckpt-inspect", "groups", sets / name / "ckpt", "--json").json())
    assert sorted(shown - owned_elements(recorded))[:3] == []
    assert sorted(owned_elements(recorded) - shown)[:3] == []


@pytest.mark.parametrize("name", NAMES)
def test_sound_state_raises_nothing(name: str, sets: Path) -> None:
    code, document = verify(sets / name / "ckpt")
    assert code == SOUND, damage_of(document)
    assert document["checked"]["masters"] > 20
    assert document["not_checked"] == []
    assert document["not_proven"] == []


# Families, and layouts between which the order of sums of gradients does not change.
ONE_STATE = (
    ("par_do_adam", ("torch_dp1", "torch_tp2pp2dp2", "torch_bucket7000_dp1",
                     "dp_reshardable_dp4", "dp_reshardable_pp2vpp2dp2",
                     "fully_reshardable_dp2")),
    ("par_do_adam_llama", ("torch_tp2dp2", "dp_reshardable_tp2", "fully_reshardable_dp1")),
    ("par_do_adam_tied", ("torch_pp2dp2", "dp_reshardable_pp2vpp2dp2", "fully_reshardable_dp1")),
    ("par_do_adam_moe", ("torch_dp1", "torch_ep2tp2dp2", "dp_reshardable_ep2pp2dp2",
                         "fully_reshardable_ep2dp2")),
    ("par_do_adam_fp16", ("torch_tp2dp2", "dp_reshardable_dp2", "fully_reshardable_dp2")),
    ("par_head_do_adam", ("dp_reshardable_tp2dp2", "fully_reshardable_dp1")),
    ("par_head_lw_muon", ("torch_dist_tp2dp2", "fully_reshardable_dp1")),
    ("par_do_adam_fully_reshardable", ("dp1", "dp4", "cp2dp2", "tp2pp2dp2", "dp4_to_pp2dp2")),
    ("par_do_adam_tied_fully_reshardable", ("dp1", "pp2dp2", "pp2vpp2dp2")),
    ("par_do_adam_moe_fully_reshardable", ("dp1", "ep2dp2", "ep2tp2dp2")),
    ("par_do_adam_moef_fully_reshardable", ("dp1", "ep2pp2dp2")),
    ("par_do_adam_fp16_fully_reshardable", ("dp2", "tp2dp2")),
    ("par_head_do_adam_fully_reshardable", ("dp1", "tp2pp2dp2")),
    ("par_v012_do_adam_fully_sharded", ("dp1", "dp4", "tp2pp2dp2")),
    ("par_v012_do_adam", ("fully_sharded_dp1", "torch_tp2dp2")),
    ("par_v012_do_adam_dp_zero", ("dp2", "tp2dp2")),  # args say how it was saved
    ("par_v014_do_adam_fully_sharded", ("dp2", "pp2dp2")),
)


@pytest.mark.parametrize(("prefix", "layouts"), ONE_STATE)
def test_one_state_has_one_logical_hash(prefix: str, layouts: tuple[str, ...], sets: Path) -> None:
    assert len({logical_digest(sets / f"{prefix}_{layout}/ckpt") for layout in layouts}) == 1


# --- what is not right ---


@pytest.mark.parametrize("name", FAULTS)
def test_state_of_several_buckets_of_0_15_to_0_19_is_found_and_not_carried(
    name: str, sets: Path, tmp_path: Path
) -> None:
    code, document = verify(sets / name / "ckpt")
    assert code == DAMAGED
    assert len(damage_of(document)) > 20
    displaced, found, lost = FAULTS[name]
    [shift] = [f for f in document["findings"] if "too far back" in f["problem"]]
    assert f"of {displaced} parameters" in shift["problem"]
    assert f"moved, {found} of {found} masters round to their weights" in shift["problem"]
    assert f"{lost} are not in the files" in shift["problem"]
    assert "issue 5077" in shift["hint"]
    made = tmp_path / "a.safetensors"
    line = refuse(MALFORMED, "ckpt-convert", sets / name / "ckpt", made, "--to", "safetensors")
    assert "does not round to" in line and not made.exists()


@pytest.mark.parametrize("layout", ["pp2dp2", "tp2pp2dp2"])
def test_groups_that_0_12_swaps_on_later_stages_are_told(layout: str, sets: Path) -> None:
    document = verify(sets / f"par_v012_do_adam_fully_sharded_{layout}/ckpt")[1]
    notes = [f["problem"] for f in document["findings"] if f["severity"] == "note"]
    assert any("up to 0.15 loads these groups by their place" in note for note in notes)


@pytest.mark.parametrize(
    "name", ["par_v012_do_adam_fully_sharded_tp2dp2", "par_v014_do_adam_fully_sharded_pp2dp2"]
)
def test_groups_that_are_not_swapped_are_not(name: str, sets: Path) -> None:
    findings = verify(sets / name / "ckpt")[1]["findings"]
    assert not any("groups" in found["problem"] for found in findings)


# --- what is carried ---


@pytest.mark.parametrize(
    "name",
    ["par_do_adam_moe_fully_reshardable_ep2dp2", "par_head_do_adam_fully_reshardable_tp2dp2",
     "par_v012_do_adam_fully_sharded_tp2dp2"],
)
def test_the_model_alone_is_carried_to_both_containers_and_other_sizes(
    name: str, sets: Path, tmp_path: Path
) -> None:
    source = sets / name / "ckpt"
    succeed("ckpt-convert", source, tmp_path / "a", "--to", "torch", "--model-only")
    succeed("ckpt-convert", source, tmp_path / "b", "--to", "torch_dist", "--model-only")
    succeed("reshard", source, tmp_path / "c", "--dp", 4, "--model-only")
    assert len({logical_digest(tmp_path / made) for made in "abc"}) == 1
    succeed("ckpt-convert", tmp_path / "a", tmp_path / "a.safetensors", "--to", "safetensors")
    expected = {key: tensor for key, tensor in recorded_state(sets / name).items()
                if not key.startswith("optimizer.")}
    expect_none(state_differences(load_file(tmp_path / "a.safetensors"), expected))


STEPPED = (
    ("par_do_adam_fully_reshardable_tp2dp2", "gpt"),
    ("par_do_adam_moe_fully_reshardable_ep2dp2", "moe"),
    ("par_do_adam_fp16_fully_reshardable_tp2dp2", "fp16"),
    ("par_head_do_adam_fully_reshardable_tp2dp2", "gpt"),
    ("par_v012_do_adam_fully_sharded_dp4", "gpt"),
    ("par_v012_do_adam_dp_zero_tp2dp2", "gpt"),
    ("par_v014_do_adam_moef_fully_sharded_ep2dp2", "moef"),
    ("par_v012_do_adam_moe_fully_sharded_ep2dp2", "moe"),
    ("par_do_adam_dp_reshardable_tp2dp2", "gpt"),
    ("par_do_adam_fp16_dp_reshardable_tp2dp2", "fp16"),
    ("par_do_adam_moe_dp_reshardable_ep2dp2", "moe"),
    ("par_do_adam_torch_tp2dp2", "gpt"),
    ("par_do_adam_moe_torch_ep2dp2", "moe"),
    ("par_head_do_adam_dp_reshardable_tp2dp2", "gpt"),
    ("par_head_lw_muon_torch_dist_tp2dp2", "gpt"),
    ("par_head_lw_muon_buckets_torch_dist_tp2dp2", "gpt"),
)


@pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built")
@pytest.mark.parametrize(("name", "family"), STEPPED)
def test_the_next_step_is_megatrons(name: str, family: str, sets: Path) -> None:
    folder = sets / f"family_{family}"
    steps = json.loads((folder / "family.json").read_text())["steps"]
    outcome = run(
        "step-replay", "run", sets / name / "ckpt", "--grads", folder / "grads.safetensors",
        "--first", steps, "--steps", 1,
        "--expect", sets / name / "expected/next_state.safetensors",
    )
    assert outcome.code == 0, outcome

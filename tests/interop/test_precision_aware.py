"""State of a precision-aware optimizer: masters as 16-bit remainders, what became of moments in
fewer bits, and weights that are no rounded masters. Megatron-Core 0.16.1 writes the checkpoints
around a stand-in for TransformerEngine's FusedAdam (scripts/golden/zero1.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from damage import edit_args, edit_entries, edit_file, edit_metadata, edit_model
from parallel_sets import (
    DAMAGED,
    MALFORMED,
    SOUND,
    UNSUPPORTED,
    expect_none,
    recorded_state,
    state_differences,
)
from programs import damage_of, hash_of, refuse, succeed, verify
from reading import iteration_folder
from test_zero1_golden import STATE, flattened, saved_again

FORMS = ("torch", "dp_reshardable", "fully_reshardable")
CASES = ("remainders", "remainders_fp8", "remainders_half", "half_masters", "whole_masters")
REMAINDER = "optimizer.state.param_remainder."
OUTPUT = "output_layer.weight"


def expected_of(folder: Path) -> dict[str, torch.Tensor]:
    """Of the live objects. What Megatron gathers on one rank it gathers as float32."""
    state = recorded_state(folder)
    if "_dp_reshardable_" in folder.name:
        return state
    return {key: tensor.float() if key.startswith(REMAINDER) else tensor
            for key, tensor in state.items()}


def flat_state(source: Path, tmp_path: Path, *options: str) -> dict[str, torch.Tensor]:
    made = tmp_path / "state.safetensors"
    succeed("ckpt-convert", source, made, "--to", "safetensors", *options)
    return load_file(made)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_state_is_that_of_the_live_objects(
    case: str, form: str, aware: Path, tmp_path: Path
) -> None:
    folder = aware / f"{case}_{form}_dp2"
    expect_none(state_differences(flat_state(folder / "ckpt", tmp_path), expected_of(folder)))


@pytest.mark.parametrize("form", FORMS)
def test_one_rank_and_two_hold_one_state(form: str, aware: Path) -> None:
    digests = {hash_of(aware / f"remainders_{form}_dp{size}" / "ckpt", "--logical")["digest"]
               for size in (1, 2)}
    assert len(digests) == 1


def test_forms_that_hold_float32_hold_one_state(aware: Path) -> None:
    digests = {hash_of(aware / f"remainders_{form}_dp2" / "ckpt", "--logical")["digest"]
               for form in ("torch", "fully_reshardable")}
    assert len(digests) == 1


def test_between_int16_and_float32_the_type_of_remainders_alone_differs(aware: Path) -> None:
    sources = [aware / f"remainders_{form}_dp2/ckpt" for form in FORMS[1:]]
    hashes = [{t["key"]: t["sha256"] for t in hash_of(s, "--logical")["tensors"]} for s in sources]
    assert hashes[0].keys() == hashes[1].keys()
    differing = {key for key in hashes[0] if hashes[0][key] != hashes[1][key]}
    assert differing == {key for key in hashes[0] if key.startswith(REMAINDER)}


def in_fp8(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.float().abs().max() / 448
    return ((weight.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


def unproven(document: dict) -> list[str]:
    return [f"{left['what']}: {left['reason']}" for left in document["not_proven"]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES[:3])
def test_remainders_raise_nothing_and_prove_nothing(case: str, form: str, aware: Path) -> None:
    code, document = verify(aware / f"{case}_{form}_dp2/ckpt")
    assert code == SOUND and damage_of(document) == []
    assert document["not_checked"] == []
    assert document["checked"]["masters"] == 0
    [left] = unproven(document)
    assert left.startswith("29 weights") and "16-bit remainders" in left


@pytest.mark.parametrize("form", FORMS)
def test_masters_in_float16_are_not_proven_and_not_damage(form: str, aware: Path) -> None:
    code, document = verify(aware / f"half_masters_{form}_dp2/ckpt")
    assert code == SOUND and damage_of(document) == []
    [left] = unproven(document)
    assert "use_precision_aware_optimizer" in left


@pytest.mark.parametrize("form", FORMS)
def test_whole_masters_are_proven_whatever_args_say(form: str, aware: Path) -> None:
    code, document = verify(aware / f"whole_masters_{form}_dp2/ckpt")
    assert code == SOUND and document["not_proven"] == []
    assert document["checked"]["masters"] >= 29


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32])
def test_fragments_up_to_0_14_hold_remainders_too(
    dtype: torch.dtype, aware: Path, copied, tmp_path: Path
) -> None:
    def change(state: dict) -> None:
        for key in [key for key in state if key.startswith(f"{STATE}fp32_param.")]:
            state[key] = state[key].to(dtype)

    folder = aware / "remainders_fully_reshardable_dp2"
    root = flattened(copied(folder / "ckpt"), change)
    expected = {key: tensor.to(dtype) if key.startswith(REMAINDER) else tensor
                for key, tensor in expected_of(folder).items()}
    expect_none(state_differences(flat_state(root, tmp_path), expected))
    code, document = verify(root)
    assert code == SOUND and damage_of(document) == [] and document["not_checked"] == []


def test_groups_count_remainders_as_state(aware: Path) -> None:
    states = {}
    for form in FORMS:
        shown = succeed("ckpt-inspect", "groups", aware / f"remainders_{form}_dp2/ckpt", "--json")
        states[form] = sum(rank["state_bytes"] for rank in shown.json()["ranks"])
    assert states["torch"] == states["fully_reshardable"] == states["dp_reshardable"] + 9152 * 2


def test_a_state_differs_from_itself_in_nothing(aware: Path) -> None:
    source = aware / "remainders_dp_reshardable_dp2/ckpt"
    succeed("ckpt-inspect", "diff", source, aware / "remainders_dp_reshardable_dp1/ckpt")


# --- what is refused by name ---


def change_remainder(value: float) -> Callable[[dict], None]:
    def change(state: dict) -> None:
        state[f"{STATE}param.{OUTPUT}"][3, 5] = value

    return change


@pytest.mark.parametrize("value", [32768.0, -32769.0, 0.5, float("nan")])
def test_a_value_that_is_no_remainder_is_found(
    value: float, aware: Path, copied, tmp_path: Path
) -> None:
    root = copied(aware / "remainders_fully_reshardable_dp2/ckpt")
    saved_again(root, change_remainder(value))
    code, document = verify(root)
    assert code == DAMAGED
    [problem] = damage_of(document)
    assert "1 value is no integer of 16 bits" in problem and "index 53" in problem
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert f"{REMAINDER}{OUTPUT}" in line and "element 53 is not an integer of 16 bits" in line


def test_a_value_that_is_no_remainder_is_found_in_a_flat_buffer(
    aware: Path, copied, tmp_path: Path
) -> None:
    def change(tree: dict) -> None:
        next(iter(tree[0].values()))["param"][53] = 1e6

    root = copied(aware / "remainders_torch_dp2/ckpt")
    edit_file(iteration_folder(root) / "mp_rank_00/distrib_optim.pt", change)
    code, document = verify(root)
    assert code == DAMAGED and "no integer of 16 bits" in damage_of(document)[0]
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert f"{REMAINDER}{OUTPUT}" in line


@pytest.mark.parametrize(
    ("state", "dtype", "named"),
    [("param", torch.int32, "the masters are not float32, but int32"),
     ("exp_avg", torch.uint8, "optimizer state of type uint8")],
)
def test_types_that_nothing_stores_are_refused(
    state: str, dtype: torch.dtype, named: str, aware: Path, copied, tmp_path: Path
) -> None:
    def change(index: object, value: object) -> object:
        is_meant = index.fqn.endswith(f".bucket_idx_0.{state}")
        return value.to(dtype) if is_meant else value

    root = copied(aware / "remainders_dp_reshardable_dp2/ckpt")
    change_type_in_metadata(root, state, dtype)
    edit_entries(change)(root)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert f"bucket_idx_0.{state}" in line and named in line


def change_type_in_metadata(root: Path, state: str, dtype: torch.dtype) -> None:
    def change(metadata: object) -> None:
        for key, entry in metadata.state_dict_metadata.items():
            if key.endswith(f".bucket_idx_0.{state}"):
                entry.properties.dtype = dtype

    edit_metadata(change)(root)


def test_remainders_of_other_weights_than_bfloat16_are_refused(
    aware: Path, copied, tmp_path: Path
) -> None:
    def change(state: dict) -> None:
        for key in list(state):
            if key.startswith(f"{STATE}param."):
                state[key] = state[key].to(torch.int16)
        state[OUTPUT] = state[OUTPUT].half()

    root = copied(aware / "remainders_fully_reshardable_dp2/ckpt")
    saved_again(root, change)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert OUTPUT in line and "complete weights of type bfloat16" in line


def test_masters_of_two_kinds_are_refused(aware: Path, copied, tmp_path: Path) -> None:
    def change(state: dict) -> None:
        state[f"{STATE}param.{OUTPUT}"] = state[f"{STATE}param.{OUTPUT}"].to(torch.int16)

    root = copied(aware / "remainders_fully_reshardable_dp2/ckpt")
    saved_again(root, change)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "int16" in line and "of the same optimizer of type" in line


@pytest.mark.parametrize("form", FORMS)
def test_moments_whose_scales_are_not_stored_are_refused(
    form: str, aware: Path, copied, tmp_path: Path
) -> None:
    root = copied(aware / f"whole_masters_{form}_dp2/ckpt")
    edit_args(fp8_recipe="blockwise", exp_avg_sq_dtype=torch.float16)(root)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "exp_avg_sq_dtype" in line and "divided by scales that it does not store" in line
    code, document = verify(root)
    assert code == SOUND and damage_of(document) == []


def converted(source: Path, made: Path, form: str, *options: str) -> Path:
    """To one of FORMS."""
    container, sharding = ("torch", "flat_file") if form == "torch" else ("torch_dist", form)
    succeed("ckpt-convert", source, made, "--to", container, "--optimizer-sharding", sharding,
            *options)
    return made


def stored_state(root: Path) -> list[tuple]:
    """Every tensor that is stored; nobody wrote what lies between parameters in flat buckets."""
    return sorted((t["key"], t["dtype"], tuple(t["shape"]),
                   "" if ".bucket_idx_" in t["key"] else t["sha256"])
                  for t in hash_of(root)["tensors"])


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("form", FORMS)
def test_remainders_are_written_as_megatron_writes_them(
    form: str, target: str, aware: Path, tmp_path: Path
) -> None:
    """As 16-bit integers in flat buckets, as float32 in other forms."""
    result = converted(aware / f"remainders_{form}_dp2/ckpt", tmp_path / "made", target)
    twin = aware / f"remainders_{target}_dp2"
    assert stored_state(result) == stored_state(twin / "ckpt")
    expect_none(state_differences(flat_state(result, tmp_path), expected_of(twin)))


@pytest.mark.parametrize("form", FORMS)
def test_remainders_come_back_from_other_sizes(form: str, aware: Path, tmp_path: Path) -> None:
    source = aware / f"remainders_{form}_dp2"
    succeed("reshard", source / "ckpt", tmp_path / "there", "--pp", 2, "--dp", 3)
    succeed("reshard", tmp_path / "there", tmp_path / "back", "--pp", 1, "--dp", 2)
    expect_none(state_differences(flat_state(tmp_path / "back", tmp_path), expected_of(source)))


def test_remainders_have_no_place_in_a_layer_wise_optimizer(aware: Path, tmp_path: Path) -> None:
    line = refuse(UNSUPPORTED, "ckpt-convert", aware / "remainders_torch_dp2/ckpt", tmp_path / "a",
                  "--to", "torch_dist", "--optimizer-sharding", "layer_wise")
    assert "16-bit remainders" in line


@pytest.mark.parametrize("form", FORMS[:2])
def test_under_strict_names_must_be_proven(form: str, aware: Path, tmp_path: Path) -> None:
    source = aware / f"remainders_{form}_dp2/ckpt"
    options = ("--to", "safetensors", "--strict")
    line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "a", *options)
    assert "not proven" in line or "not carried" in line


# --- several buckets, issue 5077 ---


def test_displaced_remainders_are_told_and_not_carried(aware: Path, tmp_path: Path) -> None:
    source = aware / "remainders_displaced_fully_reshardable_dp3/ckpt"
    code, document = verify(source)
    assert code == SOUND and damage_of(document) == []
    assert any("issue 5077" in left for left in unproven(document))
    line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "a", "--to", "safetensors")
    assert "ends in zeros" in line and "issue 5077" in line


@pytest.mark.parametrize("form", FORMS[:2])
def test_buckets_displace_nothing_in_other_forms(form: str, aware: Path, tmp_path: Path) -> None:
    folder = aware / f"remainders_displaced_{form}_dp3"
    expect_none(state_differences(flat_state(folder / "ckpt", tmp_path), expected_of(folder)))


# --- beside masters that are no remainders ---


def test_of_weights_kept_in_fp8_each_parameter_has_a_remainder_or_a_master(
    aware: Path, copied, tmp_path: Path
) -> None:
    folder, whole = (aware / f"{case}_fully_reshardable_dp2"
                     for case in ("remainders", "whole_masters"))
    master = recorded_state(whole)[f"{STATE}fp32_param.{OUTPUT}"]

    def keep_whole(state: dict) -> None:
        state[f"{STATE}param.{OUTPUT}"] = master
        state[OUTPUT] = in_fp8(master.bfloat16())

    root = copied(folder / "ckpt")
    edit_args(fp8_param_gather=True)(root)
    saved_again(root, keep_whole)
    found = flat_state(root, tmp_path)
    assert torch.equal(found[f"{STATE}fp32_param.{OUTPUT}"], master)
    assert f"{REMAINDER}{OUTPUT}" not in found
    assert sum(key.startswith(REMAINDER) for key in found) == 28
    code, document = verify(root)
    assert code == SOUND and damage_of(document) == []


def swap_layers(root: Path) -> None:
    """Two of one shape change places, as in a buffer that another model laid out."""
    def swap(tree: dict) -> None:
        first, second = (tree["model"][f"decoder.layers.{layer}.mlp.linear_fc1.weight"]
                         for layer in (0, 1))
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    edit_model(swap)(root)


def test_masters_far_from_their_weights_are_refused(aware: Path, copied, tmp_path: Path) -> None:
    root = copied(aware / "half_masters_torch_dp2/ckpt")
    swap_layers(root)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "linear_fc1.weight" in line and "does not round to" in line


@pytest.mark.parametrize("form", FORMS)
def test_lineage_takes_remainders_for_no_moment(form: str, aware: Path) -> None:
    folder = aware / f"remainders_{form}_dp2/ckpt"
    document = succeed("ckpt-inspect", "lineage", folder, "--json").json()
    (row,) = document["iterations"]
    assert set(row["norms"]["states"]) == {"exp_avg", "exp_avg_sq"}
    assert not [event for event in document["events"] if "param_remainder" in event["key"]]

"""A checkpoint of a DistributedOptimizer with torch's AdamW (fully_reshardable), the same state in
the form of Megatron-Core up to 0.14, and both with damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from damage import edit_file
from parallel_sets import expect_none, recorded_state, state_differences
from programs import GOLDEN, damage_of, hash_of, refuse, succeed, verify
from reading import DcpFolder, iteration_folder

SOURCE = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2"
SOUND, DAMAGED, MALFORMED, UNSUPPORTED = 0, 1, 3, 4
STATE = "optimizer.state."
Change = Callable[[dict], None]


def state_in(root: Path) -> dict[str, object]:
    """Every tensor of a torch_dist folder, whole, and every object, by its key."""
    folder = DcpFolder(iteration_folder(root))
    state: dict[str, object] = {key: folder.object(key) for key in folder.objects()}
    for key, tensor in folder.tensors().items():
        whole = torch.empty(tensor.size, dtype=tensor.properties.dtype)
        for (offsets, sizes), part in folder.chunks(key).items():
            whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))] = part
        state[key] = whole
    return state


def saved_again(root: Path, change: Change) -> None:
    """The same folder, written by PyTorch from one process."""
    folder = iteration_folder(root)
    state = state_in(root)
    for path in [folder / ".metadata", *folder.glob("*.distcp")]:
        path.unlink()
    change(state)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(state, checkpoint_id=folder, planner=planner, no_dist=True)


def flatten(state: dict) -> None:
    """As Megatron-Core up to 0.14 stores optimizer state: one fragment for each layer."""
    for key in [key for key in state if key.startswith(STATE)]:
        tensor = state.pop(key)
        layers = [tensor.shape[0]] if ".layers." in key else []
        grid = layers + [1] * (tensor.dim() - len(layers))
        name = key.replace(f"{STATE}param.", f"{STATE}fp32_param.")
        state[name] = tensor.reshape(*grid, -1)


def say_flattened(common: dict) -> None:
    common["content_metadata"]["distrib_optim_sharding_type"] = "fully_sharded_model_space"
    common["optimizer"]["param_state_sharding_type"] = "fully_sharded_model_space"


def flattened(root: Path, change: Change = lambda state: None) -> Path:
    def flatten_and_change(state: dict) -> None:
        flatten(state)
        change(state)

    saved_again(root, flatten_and_change)
    edit_file(iteration_folder(root) / "common.pt", say_flattened)
    return root


def logical_tensors(root: Path) -> dict[str, str]:
    return {t["key"]: t["sha256"] for t in hash_of(root, "--logical")["tensors"]}


def test_weights_are_those_that_megatron_had(tmp_path: Path) -> None:
    made = tmp_path / "a.safetensors"
    succeed("ckpt-convert", SOURCE / "ckpt", made, "--to", "safetensors")
    weights = {k: t for k, t in load_file(made).items() if not k.startswith("optimizer.")}
    expect_none(state_differences(weights, recorded_state(SOURCE)))


def test_masters_and_steps_of_torchs_adamw_are_sound() -> None:
    code, document = verify(SOURCE / "ckpt")
    assert code == SOUND
    assert document["checked"]["masters"] > 20
    assert document["not_checked"] == document["not_proven"] == []


def test_flattened_state_is_the_same_state(copied) -> None:
    root = flattened(copied(SOURCE / "ckpt"))
    assert logical_tensors(root) == logical_tensors(SOURCE / "ckpt")
    code, document = verify(root)
    assert code == SOUND, damage_of(document)
    assert document["checked"]["masters"] > 20
    assert document["not_checked"] == []


FC1 = "decoder.layers.mlp.linear_fc1.weight"


def of_other_grid(shape: tuple[int, ...]) -> Change:
    def change(state: dict) -> None:
        key = f"{STATE}exp_avg.{FC1}"
        state[key] = state[key].reshape(shape)

    return change


def without_weight(state: dict) -> None:
    del state[FC1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (of_other_grid((2, 1, 1024)), "grid"),
        (of_other_grid((1, 1, 1, 1, 2048)), "grid"),
        (of_other_grid((2, 64, 16)), "grid"),
        (without_weight, "does not belong to any parameter"),
    ],
)
def test_fragments_that_lie_are_refused_by_name(
    change: Change, named: str, copied, tmp_path: Path
) -> None:
    root = flattened(copied(SOURCE / "ckpt"), change)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert FC1 in line and named in line, line


# --- damage --------------------------------------------------------------------------------------


def lose_moments(state: dict) -> None:
    for key in state:
        if key.startswith((f"{STATE}exp_avg.", f"{STATE}exp_avg_sq.")):
            state[key] = torch.zeros_like(state[key])


def test_moments_that_are_all_0_after_a_step_are_found(copied) -> None:
    root = copied(SOURCE / "ckpt")
    saved_again(root, lose_moments)
    code, document = verify(root)
    assert code == DAMAGED
    said = damage_of(document)
    assert len(said) == 2
    assert all("of this optimizer is 0, but it has taken 3 steps" in problem for problem in said)


def test_moments_of_one_parameter_may_be_0(copied) -> None:
    def lose_one(state: dict) -> None:
        state[f"{STATE}exp_avg.{FC1}"] = torch.zeros_like(state[f"{STATE}exp_avg.{FC1}"])

    root = copied(SOURCE / "ckpt")
    saved_again(root, lose_one)
    assert verify(root)[0] == SOUND


def test_moments_of_a_fresh_optimizer_may_be_0(copied) -> None:
    def forget_steps(common: dict) -> None:
        for group in common["optimizer"]["optimizer"]["param_groups"]:
            group["step"] = 0.0

    root = copied(SOURCE / "ckpt")
    saved_again(root, lose_moments)
    edit_file(iteration_folder(root) / "common.pt", forget_steps)
    assert verify(root)[0] == SOUND


def test_groups_of_another_step_are_found(copied) -> None:
    def count_otherwise(common: dict) -> None:
        common["optimizer"]["optimizer"]["param_groups"][1]["step"] = 2.0

    root = copied(SOURCE / "ckpt")
    edit_file(iteration_folder(root) / "common.pt", count_otherwise)
    code, document = verify(root)
    assert code == DAMAGED
    assert any("different step count" in problem for problem in damage_of(document))


def test_a_step_count_that_is_no_number_is_named_in_its_own_place(copied) -> None:
    def lose_count(common: dict) -> None:
        for group in common["optimizer"]["optimizer"]["param_groups"]:
            group["step"] = float("nan")

    root = copied(SOURCE / "ckpt")
    edit_file(iteration_folder(root) / "common.pt", lose_count)
    code, document = verify(root)
    assert code == DAMAGED
    assert all("the group has the step count NaN" in problem for problem in damage_of(document))


def groups_in(common: dict) -> list[dict]:
    return common["optimizer"]["optimizer"]["param_groups"]


@pytest.mark.parametrize(
    ("change", "said"),
    (
        (lambda common: groups_in(common)[1].pop("step"), "is missing, although another group"),
        (lambda common: groups_in(common)[1].update(step="x"), "is not a number"),
        (lambda common: common["optimizer"]["optimizer"].update(state={"common_step": 9}),
         "is not the step count of the group's parameters"),
    ),
    ids=("missing", "text", "contradicted"),
)
def test_each_group_has_the_step_count_of_its_optimizer(
    change: Change, said: str, copied
) -> None:
    root = copied(SOURCE / "ckpt")
    edit_file(iteration_folder(root) / "common.pt", change)
    code, document = verify(root)
    assert code == DAMAGED
    assert any(said in problem for problem in damage_of(document)), damage_of(document)


def test_an_optimizer_without_a_step_count_is_damaged(copied) -> None:
    def lose_counts(common: dict) -> None:
        for group in groups_in(common):
            del group["step"]

    root = copied(SOURCE / "ckpt")
    edit_file(iteration_folder(root) / "common.pt", lose_counts)
    code, document = verify(root)
    assert code == DAMAGED
    assert damage_of(document) == [" optimizer.0/step no group and no parameter has a step count, "
                                   "and the optimizer has moments"]


def test_groups_are_matched_by_their_settings_not_by_their_order(copied) -> None:
    def swap(common: dict) -> None:
        common["optimizer"]["optimizer"]["param_groups"].reverse()

    def settings(root: Path) -> list[str]:
        objects = hash_of(root, "--logical")["objects"]
        return [entry["sha256"] for entry in objects if entry["key"] == "optimizer.0"]

    root = copied(SOURCE / "ckpt")
    edit_file(iteration_folder(root) / "common.pt", swap)
    assert settings(root) == settings(SOURCE / "ckpt") != []


def test_state_of_another_optimizer_of_the_chain_is_refused(copied, tmp_path: Path) -> None:
    def rename(state: dict) -> None:
        for key in [key for key in state if key.startswith(STATE) and key.endswith(FC1)]:
            state[f"chained_1.{key}"] = state.pop(key)

    root = copied(SOURCE / "ckpt")
    saved_again(root, rename)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "of optimizer 1 of the chain; expected 0" in line


def test_a_parameter_without_a_master_is_not_taken_for_sound(copied, tmp_path: Path) -> None:
    def lose_master(state: dict) -> None:
        del state[f"{STATE}param.{FC1}"]

    root = copied(SOURCE / "ckpt")
    saved_again(root, lose_master)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "fp32_param" in line and "is missing" in line


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("form", ["whole", "flattened"])
def test_a_moment_that_no_parameter_has_is_missed(
    moment: str, form: str, copied, tmp_path: Path
) -> None:
    def lose_moment(state: dict) -> None:
        for key in [key for key in state if key.startswith(f"{STATE}{moment}.")]:
            del state[key]

    root = copied(SOURCE / "ckpt")
    if form == "whole":
        saved_again(root, lose_moment)
    else:
        flattened(root, lose_moment)
    line = refuse(MALFORMED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert f"{STATE}{moment}." in line and "is missing, which the optimizer keeps" in line
    assert verify(root)[0] == DAMAGED

"""What `verify` says by name of ZeRO-1 state that is wrong, in every form in which it is filed:
each fault is made in a set that Megatron wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from damage import Damage, edit_entries, edit_file
from parallel_sets import DAMAGED, SOUND, needs_sets
from programs import damage_of, verify
from reading import iteration_folder

pytestmark = needs_sets
MOMENTS = ("exp_avg", "exp_avg_sq")
State = Callable[[dict], None]  # changes {state: tensor} of a buffer, or of a stored piece of one


def changed(tensors: dict, change: State) -> dict:
    tensors = {name: value.clone() if isinstance(value, torch.Tensor) else value
               for name, value in tensors.items()}
    change(tensors)
    return tensors


def in_named(change: State) -> Damage:
    """In tensors under the names of parameters, or in the buckets of dp_reshardable."""
    def of(index, stored: object) -> object:
        if not isinstance(stored, torch.Tensor) or "optimizer." not in index.fqn:
            return stored
        state = index.fqn.rsplit("bucket_idx_", 1)[-1].split(".")[1] \
            if ".bucket_idx_" in index.fqn else index.fqn.split("optimizer.state.")[1].split(".")[0]
        return changed({state: stored}, change)[state]
    return edit_entries(of)


def in_gathered(state: dict, change: State) -> dict:
    """In what distrib_optim.pt holds of one optimizer."""
    return {key: {dtypes: changed(buffer, change) for dtypes, buffer in value.items()}
            if isinstance(key, int) else value for key, value in state.items()}


def in_files(change: State) -> Damage:
    def damage(root: Path) -> None:
        for path in sorted(iteration_folder(root).glob("mp_rank_*/distrib_optim.pt")):
            edit_file(path, lambda tree: tree.update(in_gathered(tree, change)))
    return damage


def in_objects(change: State) -> Damage:
    return edit_entries(
        lambda index, stored: [in_gathered(stored[0], change)]
        if ".param_state/" in index.fqn else stored)


def groups_in_common(change: Callable[[list], None]) -> Damage:
    return lambda root: edit_file(
        iteration_folder(root) / "common.pt",
        lambda tree: change(tree["optimizer"]["optimizer"]["param_groups"]))


def groups_in_objects(change: Callable[[list], None]) -> Damage:
    def of(index, stored: object) -> object:
        if index.fqn.endswith(".optimizer/shard_0_1"):
            change(stored[0]["param_groups"])
            return list(stored)
        return stored
    return edit_entries(of)


def groups_in_files(change: Callable[[list], None]) -> Damage:
    def damage(root: Path) -> None:
        for path in sorted(iteration_folder(root).glob("mp_rank_*/model_optim_rng.pt")):
            edit_file(path, lambda tree: change(tree["optimizer"]["optimizer"]["param_groups"]))
    return damage


@dataclass(frozen=True)
class Form:
    name: str
    in_state: Callable[[State], Damage]
    in_groups: Callable[[Callable[[list], None]], Damage]


NAMED = (
    Form("par_do_adam_fully_reshardable_tp2dp2", in_named, groups_in_common),
    Form("par_v012_do_adam_fully_sharded_dp2", in_named, groups_in_common),
)
FLAT = (
    Form("par_do_adam_dp_reshardable_tp2dp2", in_named, groups_in_objects),
    Form("par_v012_do_adam_dp_zero_tp2dp2", in_objects, groups_in_objects),
    Form("par_do_adam_torch_tp2dp2", in_files, groups_in_files),
)
FORMS = (*NAMED, *FLAT)
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def damage_in(form: Form, damage: Damage, sets: Path, copied) -> list[str]:
    root = copied(sets / form.name / "ckpt")
    damage(root)
    code, document = verify(root)
    assert code == DAMAGED, document
    return damage_of(document)


def nothing(tensors: dict) -> None:
    pass


@each_form
def test_a_set_that_was_only_saved_again_is_sound(form: Form, sets: Path, copied) -> None:
    root = copied(sets / form.name / "ckpt")
    form.in_state(nothing)(root)
    form.in_groups(nothing)(root)
    code, document = verify(root)
    assert code == SOUND, damage_of(document)


def zero_moments(tensors: dict) -> None:
    for moment in MOMENTS:
        if moment in tensors:
            tensors[moment].zero_()


@each_form
def test_moments_that_are_all_0_after_a_step_are_found(form: Form, sets: Path, copied) -> None:
    found = damage_in(form, form.in_state(zero_moments), sets, copied)
    assert len(found) == 2
    for moment, problem in zip(MOMENTS, sorted(found), strict=True):
        assert f"every '{moment}' of this optimizer is 0, but it has taken 3 steps" in problem


def nan_in(state: str) -> State:
    def change(tensors: dict) -> None:
        if state in tensors:
            tensors[state].view(-1)[0] = float("nan")
    return change


@each_form
@pytest.mark.parametrize("state", ["param", *MOMENTS])
def test_a_nan_in_any_state_is_found(form: Form, state: str, sets: Path, copied) -> None:
    name = "fp32_param" if state == "param" and "fully_sharded" in form.name else state
    found = damage_in(form, form.in_state(nan_in(name)), sets, copied)
    assert any("is NaN" in problem or "are NaN" in problem for problem in found)
    assert all("NaN" in problem or "rounded fp32 master" in problem for problem in found)


def one_more_step(groups: list) -> None:
    groups[0]["step"] += 1


@each_form
def test_groups_of_different_steps_are_found(form: Form, sets: Path, copied) -> None:
    found = damage_in(form, form.in_groups(one_more_step), sets, copied)
    assert any("step count" in problem for problem in found)


def swapped_decay(groups: list) -> None:
    one, other = groups[:2]
    one["weight_decay"], other["weight_decay"] = other["weight_decay"], one["weight_decay"]


@each_form
def test_groups_with_each_others_decay_are_found(form: Form, sets: Path, copied) -> None:
    [found] = damage_in(form, form.in_groups(swapped_decay), sets, copied)
    assert "have each other's weight_decay" in found


def other_buckets(root: Path) -> None:
    """A bucket for each parameter: what lies between parameters lies at the ends of buckets then,
    where it is not stored. Larger buckets can leave a gathered buffer as it is."""
    folder = iteration_folder(root)
    for path in [*folder.glob("common.pt"), *sorted(folder.glob("mp_rank_*/model_optim_rng.pt"))]:
        edit_file(path, lambda tree: vars(tree["args"]).update(
            overlap_grad_reduce=True, ddp_bucket_size=64))


@pytest.mark.parametrize("form", FLAT, ids=lambda form: form.name)
def test_buckets_that_args_contradict_are_found(form: Form, sets: Path, copied) -> None:
    found = damage_in(form, other_buckets, sets, copied)
    assert any("expected" in problem and ("by the model's parameters in the order of the buffer"
                                          in problem or "has buckets of" in problem)
               for problem in found), found

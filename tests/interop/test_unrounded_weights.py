"""Weights that are no rounded masters, and parameters without any: kept in fp8 and stored
dequantised, or frozen. Made from sound checkpoints of Megatron in every flat form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from damage import edit_args, edit_entries, edit_file, edit_model
from parallel_sets import DAMAGED, SOUND, UNSUPPORTED
from programs import GOLDEN, damage_of, refuse, verify
from reading import iteration_folder, load, model_file
from test_precision_aware import FORMS, OUTPUT, flat_state, in_fp8, unproven
from test_zero1_golden import STATE, saved_again

# --- weights that are kept in fp8, and stored dequantised ---

DO_ADAM = {"torch": GOLDEN / "do_adam_bf16_torch_dp2",
           "dp_reshardable": GOLDEN / "do_adam_bf16_torch_dist_dp_reshardable_dp2",
           "fully_reshardable": GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2"}


def with_fp8_weights(form: str, copied) -> Path:
    root = copied(DO_ADAM[form] / "ckpt")
    edit_args(fp8_param_gather=True)(root)

    def change_model(tree: dict) -> None:
        for name, weight in tree["model"].items():
            if isinstance(weight, torch.Tensor) and weight.dim() == 2:
                weight.copy_(in_fp8(weight))

    def change(index: object, value: object) -> object:
        is_matrix = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
        return in_fp8(value) if is_matrix and value.dim() > 1 else value

    if form == "torch":
        edit_model(change_model)(root)
    else:
        edit_entries(change)(root)
    return root


@pytest.mark.parametrize("form", FORMS)
def test_weights_kept_in_fp8_raise_nothing(form: str, copied) -> None:
    code, document = verify(with_fp8_weights(form, copied))
    assert code == SOUND and damage_of(document) == []


def test_masters_of_weights_kept_in_fp8_are_named_not_proven(copied, tmp_path: Path) -> None:
    form = "fully_reshardable"
    root = with_fp8_weights(form, copied)
    document = verify(root)[1]
    assert document["not_checked"] == []
    [left] = unproven(document)
    assert "fp8_param_gather" in left
    original = tmp_path / "original"
    original.mkdir()
    found = flat_state(root, tmp_path)
    for key, tensor in flat_state(DO_ADAM[form] / "ckpt", original).items():
        assert not key.startswith(STATE) or torch.equal(tensor, found[key]), key


@pytest.mark.parametrize("form", FORMS[:2])
def test_flat_buffers_of_bytes_are_refused(form: str, copied, tmp_path: Path) -> None:
    root = with_fp8_weights(form, copied)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "safetensors")
    assert "fp8_param_gather" in line


# --- frozen parameters, which have neither masters nor moments ---

FROZEN = "decoder.layers.1.self_attention.linear_proj.weight"
PREFIX = "optimizer.distributed.dp_group_idx_0."


def place_in_buffer(state: dict, masters: torch.Tensor) -> tuple[int, int]:
    """Where the parameter lies: its masters round to its weight."""
    weight = state[FROZEN].reshape(-1)
    for begin in range(0, len(masters) - len(weight) + 1, 64):
        if torch.equal(masters[begin : begin + len(weight)].bfloat16(), weight):
            return begin, begin + len(weight)
    raise AssertionError("not in the buffer")


def without(buffer: torch.Tensor, place: tuple[int, int]) -> torch.Tensor:
    return torch.cat([buffer[: place[0]], buffer[place[1] :]])


def freeze_in_file(root: Path) -> None:
    def cut(tree: dict) -> None:
        [buffers] = tree[0].values()
        place = place_in_buffer(load(model_file(root))["model"], buffers["param"])
        for state in ("param", "exp_avg", "exp_avg_sq"):
            buffers[state] = without(buffers[state], place)
        buffers["numel_unpadded"] -= place[1] - place[0]

    edit_file(iteration_folder(root) / "mp_rank_00/distrib_optim.pt", cut)


def freeze_in_buckets(root: Path) -> None:
    def cut(state: dict) -> None:
        weights = {FROZEN: state["decoder.layers.self_attention.linear_proj.weight"][1]}
        buffers = {key: t for key, t in state.items() if ".bucket_idx_0." in key}
        [masters] = [t for key, t in buffers.items() if key.endswith(".param")]
        place = place_in_buffer(weights, masters)
        state.update({key: without(buffer, place) for key, buffer in buffers.items()})
        for sizes in ("per_bucket_numel", "per_bucket_numel_unpadded"):
            [[of_types]] = state[f"{PREFIX}{sizes}/shard_0_1"]
            for dtypes, [size] in of_types.items():
                of_types[dtypes] = [size - (place[1] - place[0])]

    saved_again(root, cut)


def freeze_in_names(root: Path) -> None:
    def cut(state: dict) -> None:
        for key in [key for key in state if key.startswith(STATE) and key.endswith(OUTPUT)]:
            del state[key]

    saved_again(root, cut)


@pytest.mark.parametrize(
    ("form", "freeze", "name"),
    [("torch", freeze_in_file, FROZEN), ("dp_reshardable", freeze_in_buckets, FROZEN),
     ("fully_reshardable", freeze_in_names, OUTPUT)],
    ids=FORMS,
)
def test_a_frozen_parameter_raises_nothing_and_is_named_not_proven(
    form: str, freeze: Callable[[Path], None], name: str, copied
) -> None:
    root = copied(DO_ADAM[form] / "ckpt")
    freeze(root)
    code, document = verify(root)
    assert code == SOUND, damage_of(document)
    assert damage_of(document) == []
    assert document["checked"]["masters"] >= 16  # of torch_dist some are stacked over layers
    [left] = unproven(document)
    assert name in left and "frozen parameters have none" in left


@pytest.mark.parametrize("form", FORMS[:2])
def test_buffers_that_lack_elements_are_damage(form: str, copied) -> None:
    """A buffer that ends early is not one without a frozen parameter."""
    root = copied(DO_ADAM[form] / "ckpt")
    if form == "torch":
        def cut(tree: dict) -> None:
            [buffers] = tree[0].values()
            for state in ("param", "exp_avg", "exp_avg_sq"):
                buffers[state] = buffers[state][64:]
            buffers["numel_unpadded"] -= 64

        edit_file(iteration_folder(root) / "mp_rank_00/distrib_optim.pt", cut)
    else:
        def shorten(state: dict) -> None:
            for key in [key for key in state if ".bucket_idx_0." in key]:
                state[key] = state[key][64:]

        saved_again(root, shorten)
    code, document = verify(root)
    assert code == DAMAGED and damage_of(document) != []

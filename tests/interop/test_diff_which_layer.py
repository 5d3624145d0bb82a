"""The first row of `diff` is the tensor that was changed, in pairs that torch writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from programs import run

DIFFERENT = 1
LAYERS, WIDTH, HEADS = 6, 32, 4
STATES = ("exp_avg", "exp_avg_sq")


def make_state(seed: int) -> dict:
    random = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=random)
    model = {"embedding.weight": normal(64, WIDTH)}
    for layer in range(LAYERS):
        front = f"decoder.layers.{layer}."
        model[front + "self_attention.linear_qkv.weight"] = normal(3 * WIDTH, WIDTH)
        model[front + "mlp.linear_fc1.weight"] = normal(4 * WIDTH, WIDTH)
        model[front + "input_layernorm.weight"] = 1 + 0.1 * normal(WIDTH)
    states = {key: {name: normal(*weight.shape).square() for name in STATES}
              for key, weight in model.items()}
    return {"model": model, "optimizer": {"state": states}}


def layer_of(seed: int) -> int:
    return seed % LAYERS


def scale_a_layer(state: dict, seed: int) -> set[str]:
    front = f"decoder.layers.{layer_of(seed)}."
    changed = [key for key in state["model"] if key.startswith(front)]
    for key in changed:
        state["model"][key] *= 1.001
    return {f"/model/{key}" for key in changed}


def add_noise(state: dict, seed: int) -> set[str]:
    key = f"decoder.layers.{layer_of(seed)}.mlp.linear_fc1.weight"
    noise = torch.randn(state["model"][key].shape, generator=torch.Generator().manual_seed(seed))
    state["model"][key] += 1e-4 * noise
    # States that changed more do not come before a weight.
    state["optimizer"]["state"]["embedding.weight"]["exp_avg"] += 1
    return {f"/model/{key}"}


def permute_a_head(state: dict, seed: int) -> set[str]:
    key = f"decoder.layers.{layer_of(seed)}.self_attention.linear_qkv.weight"
    rows = state["model"][key].view(3 * HEADS, WIDTH // HEADS, WIDTH)
    rows[[0, 1 + seed % 3]] = rows[[1 + seed % 3, 0]]
    # Every other weight took a small step.
    for other, weight in state["model"].items():
        if other != key:
            weight += 1e-5
    return {f"/model/{key}"}


def reset_a_moment(state: dict, seed: int) -> set[str]:
    key = f"decoder.layers.{layer_of(seed)}.mlp.linear_fc1.weight"
    name = STATES[seed % 2]
    state["optimizer"]["state"][key][name].zero_()
    return {f"/optimizer/state/{key}/{name}"}


def round_and_change_one(state: dict, seed: int) -> set[str]:
    key = f"decoder.layers.{layer_of(seed)}.mlp.linear_fc1.weight"
    state["model"][key][seed, 3] += 0.5
    state["model"] = {name: weight.bfloat16() for name, weight in state["model"].items()}
    return {f"/model/{key}"}


CHANGES = (scale_a_layer, add_noise, permute_a_head, reset_a_moment, round_and_change_one)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_first_row_is_what_was_changed(tmp_path: Path, change, seed: int) -> None:
    a, b = make_state(seed), make_state(seed)
    changed = change(b, seed)
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    result = run("ckpt-inspect", "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json", "--top", 1)
    assert result.code == DIFFERENT
    [first] = result.json()["tensors"]["different"]
    assert first["key"] in changed, f"seed {seed}"

    key = first["key"].split("/")[-1] if "/model/" in first["key"] else None
    if key and change is not round_and_change_one:
        x, y = a["model"][key].double(), b["model"][key].double()
        assert first["value"]["norm"] == pytest.approx(float((x - y).norm()), rel=1e-9)
        assert first["value"]["norm_a"] == pytest.approx(float(x.norm()), rel=1e-9)

"""SOAP keeps L, R, Q_L and Q_R, square matrices of no parameter's shape, and a number as its step:
they go wherever masters and moments go, although no program of ours steps them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from programs import GOLDEN, logical_digest, run
from reading import iteration_folder
from twins import twin_differences

SAMPLE = GOLDEN / "lw_soap_bf16_torch_dp2"
SOURCE = SAMPLE / "ckpt"
# Megatron's own names for what it held in memory: KIND.NAME.
RECORDED = load_file(SAMPLE / "expected/state.safetensors")


def canonical(kind: str, name: str) -> str:
    return name if kind == "model" else f"optimizer.state.{kind}.{name}"


@pytest.mark.parametrize(
    "steps",
    (
        (),
        (("--to", "torch_dist"),),
        (("--to", "torch", "--dp", 3),),
        (("--to", "torch_dist", "--dp", 5), ("--to", "torch", "--dp", 4)),
    ),
    ids=("as_it_is", "torch_dist", "dp3", "torch_dist_dp5_torch_dp4"),
)
def test_every_state_is_the_one_that_the_run_held(steps: tuple, products, tmp_path: Path) -> None:
    made = SOURCE
    for step in steps:
        made = products.make("ckpt-convert", made, *step)
    outcome = run("ckpt-convert", made, tmp_path / "all.safetensors", "--to", "safetensors")
    assert outcome.code == 0, outcome
    found = load_file(tmp_path / "all.safetensors")
    recorded = {
        canonical(*key.split(".", 1)): value
        for key, value in RECORDED.items()
        if not key.startswith("step.")
    }
    assert found.keys() == recorded.keys()
    for key, value in recorded.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key
    assert {key.split(".")[2] for key in found if key.startswith("optimizer.")} == {
        *("fp32_param", "exp_avg", "exp_avg_sq", "L", "R", "Q_L", "Q_R")
    }


def test_there_and_back_gives_the_start(products) -> None:
    """But for the strides of what an eigenvalue solver left column by column."""
    back = products.convert(products.convert(SOURCE, "torch_dist"), "torch")
    different = {line.split(":")[0].rsplit("/", 1)[1] for line in twin_differences(back, SOURCE)}
    assert different <= {"Q_L", "Q_R"}
    assert logical_digest(back) == logical_digest(SOURCE)


def test_the_number_of_steps_is_kept(products) -> None:
    made = iteration_folder(products.convert(SOURCE, "torch_dist"))
    common = torch.load(made / "common.pt", weights_only=False)
    soap, adam = (common["optimizer"][i]["optimizer"]["state"] for i in (0, 1))
    assert soap == {"common_step": 3} and type(soap["common_step"]) is int
    assert adam["common_step"] == torch.tensor(3.0)


def test_verify_knows_who_owns_what(products) -> None:
    for root in (SOURCE, products.convert(SOURCE, "torch_dist")):
        outcome = run("ckpt-inspect", "verify", root)
        assert outcome.code == 0, outcome
        assert "29 masters match their weights" in outcome.text, outcome
        assert "who owns which" not in outcome.text, outcome


def test_a_square_matrix_of_another_parameter_is_found(copied, tmp_path: Path) -> None:
    root = copied(SOURCE)
    path = iteration_folder(root) / "mp_rank_00/layer_wise_optimizer_1.pt"
    tree = torch.load(path, weights_only=False)
    state = tree[0]["optimizer"]["state"]
    state[0]["L"], state[1]["L"] = state[1]["L"], state[0]["L"]
    torch.save(tree, path)
    outcome = run("reshard", root, tmp_path / "out", "--dp", 4)
    assert outcome.code == 3, outcome
    assert "/0/optimizer/state/0/L" in outcome.stderr, outcome
    assert not (tmp_path / "out").exists()

"""The AdamW steps of a replay against the real torch.optim.AdamW on the same machine.

A recording from another processor may differ from both in single bits (docs/errata.md): LibTorch's
square root is not the same on every processor. What PyTorch gets here, step-replay gets here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from comparing import sha256_of
from programs import BIN, GOLDEN, hash_of, succeed

SAMPLE = GOLDEN / "lw_muon_bf16_torch_dp2"
EXPECTED = SAMPLE / "expected"
CLIP_GRAD = 1.0  # of the recorded run; weight decay 0.1 on matrices, none on vectors
STATES = ("fp32_param", "exp_avg", "exp_avg_sq")

pytestmark = pytest.mark.skipif(
    not (BIN / "step-replay").exists(), reason="step-replay was not built"
)


def adamw_params() -> list[str]:
    recorded = load_file(EXPECTED / "state.safetensors")
    return [key.removeprefix("exp_avg.") for key in recorded if key.startswith("exp_avg.")]


def clip_coefficient(step: dict) -> float:
    return min(1.0, CLIP_GRAD / (step["grad_norm"] + 1e-6))


def steps_of_pytorch(name: str, recording: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Master and moments of one parameter after the recorded steps."""
    master = recording[f"init.{name}"].float().clone().requires_grad_()
    decay = 0.1 if master.dim() == 2 else 0.0
    optimizer = torch.optim.AdamW([master], betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    for index, step in enumerate(json.loads((EXPECTED / "run.json").read_text())["steps"]):
        optimizer.param_groups[0]["lr"] = step["lr_per_group"][0]
        master.grad = recording[f"grad{index}.{name}"].float() * clip_coefficient(step)
        optimizer.step()
    state = optimizer.state[master]
    return {"fp32_param": master.detach(), **{key: state[key] for key in STATES[1:]}}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """SHA-256 by canonical key of what step-replay saved."""
    output = tmp_path_factory.mktemp("replay") / "stepped"
    succeed("step-replay", "run", SAMPLE / "ckpt", "--grads", EXPECTED, "--from-init",
            "--grad-norm", "recorded", "-o", output)
    return {entry["key"]: entry["sha256"] for entry in hash_of(output, "--logical")["tensors"]}


@pytest.mark.parametrize("name", adamw_params())
def test_masters_and_moments_are_pytorchs_bit_for_bit(
    name: str, replayed: dict[str, str]
) -> None:
    theirs = steps_of_pytorch(name, load_file(EXPECTED / "init_and_grads.safetensors"))
    for state, tensor in theirs.items():
        assert replayed[f"optimizer.state.{state}.{name}"] == sha256_of(tensor), state

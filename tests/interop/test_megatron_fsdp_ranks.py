"""Real ranks of Megatron-FSDP: tests/golden/megatron_fsdp_ranks.tar.xz, two of core 0.19.0 and of
August 2026 (`version2`) over Gloo, with the state that all of them had together."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from programs import BIN, GOLDEN, run, succeed
from test_megatron_fsdp import described, stored

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

MASTER = "optimizer.state.fp32_param."
# Flat buffers whose cuts fall within rows of parameters; settings that each rank stored some of;
# experts' gate and up in blocks, on two tensor-parallel ranks; --megatron-fsdp-version 2, which
# saves no optimizer.
SETS = ("dp2", "dp2_no_shard", "tp2_blocks", "dp2_version2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run(["tar", "-xJf", GOLDEN / "megatron_fsdp_ranks.tar.xz", "-C", folder], check=True)
    return folder


def halves_of_ranks(name: str, value: torch.Tensor) -> torch.Tensor:
    """Rows of TP 2 as a run of TP 1 has them; blocks stay as the ranks have them."""
    if "linear_fc1" not in name or "experts" in name:
        return value
    return torch.cat([value.chunk(4)[i] for i in (0, 2, 1, 3)])


def live(run_folder: Path) -> dict[str, torch.Tensor]:
    state = load_file(run_folder / "expected/live.safetensors")
    if run_folder.name.startswith("tp2"):
        state = {name: halves_of_ranks(name, value) for name, value in state.items()}
    weights = {name.removeprefix(MASTER): value.bfloat16()
               for name, value in state.items() if name.startswith(MASTER)}
    if not any("exp_avg" in name for name in state):
        return weights
    return state | weights


def read(folder: Path, made: Path) -> dict[str, torch.Tensor]:
    succeed("ckpt-convert", folder, made, "--to", "safetensors")
    return load_file(made)


@pytest.mark.parametrize("name", SETS)
def test_the_state_is_that_of_all_ranks(name: str, runs: Path, tmp_path: Path) -> None:
    found, wanted = read(runs / name / "ckpt", tmp_path / "all.safetensors"), live(runs / name)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key


@pytest.mark.parametrize("name", ["dp2", "tp2_blocks"])
def test_it_goes_through_torch_dist_and_back(name: str, runs: Path, tmp_path: Path) -> None:
    """Rows in blocks are halved as they are: what a run at TP 1 has, and loads."""
    sizes = ("--tp", "1", "--etp", "1") if name.startswith("tp2") else ()
    succeed("ckpt-convert", runs / name / "ckpt", tmp_path / "dist", "--to", "torch_dist", *sizes)
    (tmp_path / "run").mkdir()
    succeed("ckpt-convert", tmp_path / "dist", tmp_path / "run/ckpt", "--to", "fsdp_dtensor")
    before, after = described(runs / name / "ckpt")[0], described(tmp_path / "run/ckpt")[0]
    assert {key: shape for key, shape in before.items() if not key.startswith("rng_state")} == \
        {key: shape for key, shape in after.items() if not key.startswith("rng_state")}
    raw, wanted = stored(tmp_path / "run"), live(runs / name)
    for key in [key for key in raw if key.startswith("model.") and key.endswith("_w")]:
        halves = torch.cat([raw[key], raw[key[:-1] + "v"]])
        assert torch.equal(halves, wanted[MASTER + key.removeprefix("model.module.")[:-2]]), key


@pytest.mark.parametrize(("name", "words", "told"), [
    ("dp2_version2", (), "float32 masters: stored as the weights"),
    ("dp2", ("--model-only",), "the optimizer state: --model-only leaves it out")])
def test_what_weights_alone_leave_out_is_said(
    name: str, words: tuple, told: str, runs: Path, tmp_path: Path
) -> None:
    outcome = run("ckpt-convert", runs / name / "ckpt", tmp_path / "out", "--to", "torch_dist",
                  *words)
    assert outcome.code == 0 and f"not carried: {told}" in outcome.stdout, outcome

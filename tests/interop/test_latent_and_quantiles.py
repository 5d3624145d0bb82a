"""Experts behind projections (--moe-latent-size), and routers with quantile balancing.

tests/golden/latent_and_quantiles.tar.xz: ZeRO-1 runs of core 0.19.0 on two ranks, `torch`; a hybrid
model with the first, a GPT with the second. Real 0.19.0 loaded both at TP 2, next step equal.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from parallel_sets import SOUND, expect_none, load_canonical, state_differences
from programs import BIN, GOLDEN, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    subprocess.run(["tar", "-xJf", GOLDEN / "latent_and_quantiles.tar.xz", "-C", folder],
                   check=True)
    return folder


@pytest.mark.parametrize("name", ["latent", "quantiles"])
def test_another_tensor_parallel_size_keeps_the_state(
    name: str, runs: Path, tmp_path: Path
) -> None:
    assert verify(runs / name)[0] == SOUND
    succeed("reshard", runs / name, tmp_path / "tp2", "--tp", 2)
    succeed("ckpt-convert", tmp_path / "tp2", tmp_path / "state.safetensors", "--to", "safetensors")
    expect_none(state_differences(load_file(tmp_path / "state.safetensors"),
                                  load_canonical(runs / f"{name}.safetensors")))

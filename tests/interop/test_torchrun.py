"""step-replay under PyTorch's own launcher: torchrun --no-python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from programs import BIN, GOLDEN, succeed

SAMPLE = GOLDEN / "lw_muon_bf16_torch_dp2"
REPLAY = ("run", SAMPLE / "ckpt", "--grads", SAMPLE / "expected", "--from-init")
UNEQUAL = 1

pytestmark = pytest.mark.skipif(
    not (BIN / "step-replay").exists(), reason="step-replay was not built"
)


def torchrun(processes: int, *arguments: object) -> subprocess.CompletedProcess:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--no-python")
    return subprocess.run(
        [*launcher, "--standalone", "--nproc-per-node", str(processes), str(BIN / "step-replay"),
         *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False,
    )


@pytest.mark.parametrize("processes", [2, 3])
def test_the_result_is_that_of_one_process_bit_for_bit(processes: int, tmp_path: Path) -> None:
    succeed("step-replay", *REPLAY, "-o", tmp_path / "one")
    together = torchrun(processes, *REPLAY, "--dp", 3, "--expect", tmp_path / "one", "--atol", 0)
    assert together.returncode == 0, together.stdout + together.stderr
    assert f"3 data-parallel ranks in {processes} processes" in together.stdout
    assert together.stdout.count("compared with") == 1  # one process prints


def test_a_difference_fails_every_process(tmp_path: Path) -> None:
    succeed("step-replay", *REPLAY, "--steps", 2, "-o", tmp_path / "two")
    together = torchrun(2, *REPLAY, "--expect", tmp_path / "two", "--atol", 0)
    assert together.returncode == UNEQUAL, together.stdout + together.stderr

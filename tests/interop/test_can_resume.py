"""ckpt-inspect can-load of Megatron's checkpoints: the verdicts of the real code.

tests/can_load/pairs.jsonl has what load_checkpoint of several releases did with recorded sets and
other flags; tests/can_load/README.md says how it was run. No "loads" may be false, no verdict and
no message another one, and at most a tenth not known.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallel_sets import PACKED, unpacked
from programs import BIN, GOLDEN, REPOSITORY, run

REPLAY = REPOSITORY / "tests/can_load/replay.py"
CHECKPOINT = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
def test_verdicts_are_those_of_the_real_code(tmp_path: Path) -> None:
    """Of the sets in the repository, and of those beside it where they are."""
    archive = REPLAY.parent / "sets_of_releases.tar.xz"
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    if PACKED.is_dir():
        for folder in unpacked(tmp_path / "packed").iterdir():
            if not (tmp_path / folder.name).exists():
                (tmp_path / folder.name).symlink_to(folder)
    done = subprocess.run([sys.executable, REPLAY, BIN, tmp_path], capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
@pytest.mark.parametrize("arguments, code, verdict", [
    ([], 0, "continues"),
    (["--dp", "1"], 1, "next_step_differs"),
    (["--dp", "1", "--accept-next-step"], 0, "next_step_differs"),
    (["--arg", "no_load_optim"], 1, "next_step_differs"),
    (["--arg", "normalization=RMSNorm"], 1, "loads_wrong"),
    (["--arg", "lr=0.5"], 1, "refuses"),
    (["--arg", "ckpt_format=torch"], 1, "refuses"),
    (["--arg", "an_argument_of_next_year"], 4, "not_known"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_each_verdict_has_its_exit_code(arguments: list[str], code: int, verdict: str) -> None:
    outcome = run("ckpt-inspect", "can-load", CHECKPOINT, "--target-megatron", "2026-04",
                  *arguments, "--json")
    assert (outcome.code, outcome.json()["verdict"]) == (code, verdict), outcome

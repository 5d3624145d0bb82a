"""Generated cases, the kept seeds first: whatever a command says it did is true.

    SHARDWISE_SEMANTIC_CASES  of each kind; default 250
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from campaign import KINDS, campaign_seeds, kept_seeds, run_cases
from programs import BIN

CASES = int(os.environ.get("SHARDWISE_SEMANTIC_CASES", "250"))
SEED = 17
SHOWN_MAX = 20

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


@pytest.mark.parametrize("kind", KINDS)
def test_what_exits_0_is_right_and_what_is_lost_is_said(kind: str, tmp_path: Path) -> None:
    seeds = [*kept_seeds(kind), *campaign_seeds(SEED, CASES)]
    results = list(run_cases(kind, seeds, keep=tmp_path))
    findings = [finding for result in results for finding in result.findings]
    if findings:
        wrong = len({finding.seed for finding in findings})
        shown = "\n".join(str(finding) for finding in findings[:SHOWN_MAX])
        pytest.fail(f"{wrong} of {len(seeds)} cases; inputs in {tmp_path}\n{shown}", pytrace=False)
    # A generator or programs that refuse everything would prove nothing.
    conversions = [
        command for result in results for command in result.ended
        if command.startswith(("ckpt-convert", "reshard"))
    ]  # fmt: skip
    assert sum(command.endswith(" 0") for command in conversions) > len(seeds) // 4, conversions

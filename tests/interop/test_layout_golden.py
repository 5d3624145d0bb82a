"""The answers in tests/golden/optim_layout are those that the installed megatron-core gives
today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from programs import REPOSITORY

WRITER = REPOSITORY / "tests/interop/make_layout_golden.py"
GOLDEN = REPOSITORY / "tests/golden/optim_layout"


def test_the_golden_layout_answers_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, WRITER, tmp_path], check=True, timeout=300)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert len(written) == 7
    for name in written:
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes(), name

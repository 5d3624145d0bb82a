"""The package is typed, and says so."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import shardwise

SOURCES = Path(__file__).resolve().parents[2] / "python"


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    cache = os.environ.get("SHARDWISE_MYPY_CACHE", str(tmp_path))
    outcome = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "-p", "shardwise", "--cache-dir", cache],
        cwd=SOURCES, capture_output=True, text=True, timeout=240)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert (Path(shardwise.__file__).parent / "py.typed").exists()

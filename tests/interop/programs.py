"""Runs the programs under test and checks what the command line promises about every run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("SHARDWISE_BIN", REPOSITORY / "build/bin")).resolve()
SHARED = Path(os.environ.get("SHARDWISE_SHARED", REPOSITORY / "../shared")).resolve()
FIXTURES = SHARED / "fixtures"
RECORDED = BIN.parent / "fixtures"  # what CMake unpacked of tests/golden/fixtures.tar.xz
GOLDEN = REPOSITORY / "tests/golden"

sys.path.insert(0, str(REPOSITORY / "tests/cli"))
from json_schema import describing_schemas  # noqa: E402  (a folder beside this one)

ERROR_LINE = re.compile(r"^(ckpt-inspect|ckpt-convert|reshard|step-replay): error: \S.*$")


@dataclass(frozen=True)
class Outcome:
    command: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"{' '.join(self.command)}\nexit {self.code}\n{self.stdout}\n{self.stderr}"

    def json(self) -> dict:
        return json.loads(self.stdout)

    @property
    def text(self) -> str:
        """What a person sees: data and messages."""
        return self.stdout + self.stderr


def run(program: str, *arguments: object, timeout_s: float = 60) -> Outcome:
    command = (str(BIN / program), *map(str, arguments))
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    outcome = Outcome(command, finished.returncode, finished.stdout, finished.stderr)
    if "--json" in command and outcome.stdout:
        assert describing_schemas(outcome.json()), f"no schema describes\n{outcome}"
    return outcome


def run_bounded(program: str, *arguments: object) -> Outcome:
    """In a gigabyte of address space and half a minute of processor time."""
    bounds = ("prlimit", f"--as={1 << 30}", "--cpu=30")
    command = (*bounds, str(BIN / program), *map(str, arguments), "-j", "2")
    finished = subprocess.run(command, capture_output=True, timeout=120, check=False)
    text = finished.stdout.decode(), finished.stderr.decode()  # must be UTF-8
    return Outcome(command, finished.returncode, *text)


def succeed(program: str, *arguments: object, timeout_s: float = 60) -> Outcome:
    outcome = run(program, *arguments, timeout_s=timeout_s)
    assert outcome.code == 0, outcome
    return outcome


def refuse(codes: int | set[int], program: str, *arguments: object) -> str:
    """Runs a command that must fail: one `error:` line, at most one `hint:` line, nothing else.

    Returns the error line.
    """
    return refusal_of(run(program, *arguments), codes)


def refusal_of(outcome: Outcome, codes: int | set[int]) -> str:
    """The error line of a run that must have failed, as refuse() says."""
    allowed = {codes} if isinstance(codes, int) else codes
    assert outcome.code in allowed, f"want exit {allowed}\n{outcome}"
    lines = outcome.stderr.splitlines()
    assert lines and ERROR_LINE.match(lines[0]), outcome
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].lstrip().startswith("hint: ")), outcome
    assert outcome.stdout == "", outcome
    return lines[0]


def verify(path: Path, *options: str) -> tuple[int, dict]:
    """The exit code and the document of ckpt-inspect verify."""
    outcome = run("ckpt-inspect", "verify", path, *options, "--json")
    return outcome.code, outcome.json()


def damage_of(document: dict) -> list[str]:
    """File, key and problem of each finding that is damage."""
    return [
        " ".join(found.get(part, "") for part in ("file", "key", "problem"))
        for found in document["findings"]
        if found["severity"] == "damage"
    ]


def hash_of(path: Path, *options: str) -> dict:
    return succeed("ckpt-inspect", "hash", path, "--json", *options).json()


def logical_digest(path: Path) -> str:
    return hash_of(path, "--logical")["digest"]

"""Hostile files give exceptions of the module: nothing runs, and no process dies."""
from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import shardwise
from conftest import GOLDEN

TESTS = GOLDEN.parent
sys.path.insert(0, str(TESTS / "interop"))
from hostile import archives, files, folders, pickles  # noqa: E402
from hostile.row import pickled  # noqa: E402

LONG = "SHARDWISE_LONG_TESTS" in os.environ
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(shardwise.__file__).parents[1].absolute())}


def visited(paths: list[Path], here: Path) -> collections.Counter[str]:
    """What visit.py says of them, in batches: a process each."""
    said: collections.Counter[str] = collections.Counter()
    for first in range(0, len(paths), 500):
        batch = paths[first:first + 500]
        outcome = subprocess.run([sys.executable, TESTS / "python/visit.py", *batch], cwd=here,
                                 env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        lines = outcome.stdout.splitlines()
        assert outcome.returncode == 0, (batch[len(lines)], outcome.returncode, outcome.stderr)
        said.update(lines)
    assert os.listdir(here) == []  # code that ran would leave a mark
    return said


def test_the_hostile_checkpoints_of_docs_security(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    paths = []
    rows = [*pickles.rows(), *archives.rows(), *folders.rows(), *files.rows()]
    for number, row in enumerate(rows[::1 if LONG else 4]):
        if "million" in row.name and not LONG:
            continue
        folder = tmp_path / str(number) / "input"
        folder.mkdir(parents=True)
        paths.append(row.make(folder))
    said = visited(paths, tmp_path / "here")
    assert said["CorruptError"] > 10 and said["UnsupportedError"] > 2 and said["read"] > 2


def as_metadata(content: bytes, folder: Path) -> Path:
    folder.mkdir()
    (folder / ".metadata").write_bytes(content)
    return folder


def as_file(suffix: str, wrap: Callable[[bytes], bytes] = bytes) -> Callable[[bytes, Path], Path]:
    def write(content: bytes, path: Path) -> Path:
        path = path.with_suffix(suffix)
        path.write_bytes(wrap(content))
        return path
    return write


FORMS = {"pickle": as_file(".pt", pickled), "zip": as_file(".pt"),
         "safetensors": as_file(".safetensors"), "dist_metadata": as_metadata}


@pytest.mark.parametrize("form", FORMS)
def test_what_the_fuzzers_found(form: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    seeds = sorted((TESTS / "fuzz/corpus" / form).iterdir())
    if not LONG:
        seeds = seeds[::8]
    paths = [FORMS[form](seed.read_bytes(), tmp_path / seed.name) for seed in seeds]
    assert visited(paths, tmp_path / "here").total() == len(paths) > 5


def mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0: changed[at] = chance.randrange(256)
            case 1: del changed[at:at + chance.randint(1, 64)]
            case 2: changed[at:at] = changed[at:at + chance.randint(1, 64)]
            case 3: changed[at:at + 4] = chance.choice([b"\xff" * 4, bytes(4), b"\x00\x00\x00\x80"])
        if not changed:
            return b"\0"
    return bytes(changed)


@pytest.mark.skipif(not LONG, reason="SHARDWISE_LONG_TESTS")
def test_two_thousand_fuzzed_files(torch_file: Path, safetensors_file: Path, dcp_folder: Path,
                                   tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    chance = random.Random(42)
    with zipfile.ZipFile(torch_file) as archive:
        data = archive.read("state/data.pkl")
    megatron = GOLDEN / "gpt1l_tiny_torch_dp2/iter_0000003/mp_rank_00/model_optim_rng.pt"
    seeds = [(torch_file.read_bytes(), FORMS["zip"]), (data, FORMS["pickle"]),
             (megatron.read_bytes(), FORMS["zip"]),
             (safetensors_file.read_bytes(), FORMS["safetensors"]),
             ((dcp_folder / ".metadata").read_bytes(), FORMS["dist_metadata"])]
    paths = []
    for number in range(2000):
        content, write = seeds[number % len(seeds)]
        paths.append(write(mutated(content, chance), tmp_path / str(number)))
    said = visited(paths, tmp_path / "here")
    print(said)
    assert said.total() == 2000 and said["CorruptError"] > 200

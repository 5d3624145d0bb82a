"""Every file of every kind of folder, removed, cut off or changed: what each command says.

All kinds, files, damages and commands with SHARDWISE_LONG_TESTS, else a sample, drawn with a
seed that a failure prints (SHARDWISE_SEED draws the same again).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from parallel_sets import IS_LONG
from plain_folders import INDEX, KINDS, SHARD_NAMES, Kind, Part, make_sharded_trainer, make_trainer
from programs import Outcome, run

SEED = int(os.environ.get("SHARDWISE_SEED", "38"))
SAMPLE = 30
SOUND, DAMAGED, CORRUPT, UNSUPPORTED, NOT_FOUND = 0, 1, 3, 4, 5


def removed(path: Path) -> None:
    path.unlink()


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_to_1000(path: Path) -> None:
    os.truncate(path, min(1000, path.stat().st_size - 1))


def flipped(path: Path) -> None:
    """A bit in a storage of an archive, or in its pickle where it has none; else in the middle."""
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    for name in (b"/data/0", b"/data.pkl"):
        found = content.find(name)
        header = content.rfind(b"PK\3\4", 0, found)
        if content[:2] == b"PK" and found >= 0 and header >= 0:
            name_bytes, extra_bytes = struct.unpack_from("<HH", content, header + 26)
            at = header + 30 + name_bytes + extra_bytes + 3
            break
    content[at] ^= 1
    path.write_bytes(bytes(content))


DAMAGES = (removed, halved, cut_to_1000, flipped)


@dataclass(frozen=True)
class Case:
    kind: Kind
    file: str
    damage: object

    @property
    def name(self) -> str:
        return f"{self.kind.name}/{self.file} {self.damage.__name__}"

    @property
    def part(self) -> Part:
        return self.kind.parts[self.file]


CASES = [Case(kind, file, damage) for kind in KINDS for file in kind.parts for damage in DAMAGES]
CHOSEN = CASES if IS_LONG else random.Random(SEED).sample(CASES, SAMPLE)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for kind in KINDS:
        made[kind.name] = tmp_path_factory.mktemp(kind.name)
        kind.make(made[kind.name])
    return made


def says(outcome: Outcome, code: int, *words: str) -> None:
    assert outcome.code == code, outcome
    text = " ".join(outcome.text.split())
    for word in words:
        assert word in text, (word, outcome)


def converted(folder: Path, kind: Kind, out: Path) -> Outcome:
    return run("ckpt-convert", folder, out, "--to", kind.converts_to)


def check_lacking(folder: Path, whole: Path, case: Case, out: Path) -> None:
    """A part is missing or truncated: verify 1, what needs the bytes 3, the page 0."""
    name = Path(case.file).name
    says(run("ckpt-inspect", folder), SOUND, "incomplete", name)
    says(run("ckpt-inspect", folder, "--json"), SOUND, '"incomplete"', name)
    says(run("ckpt-inspect", "verify", folder), DAMAGED, "damaged:", name)
    says(run("ckpt-inspect", "verify", folder, "--quick"), DAMAGED, "damaged:", name)
    for command in ("ls", "tree"):
        listed = run("ckpt-inspect", command, folder)
        says(listed, CORRUPT if case.part is Part.KEY else SOUND, name)
    says(run("ckpt-inspect", "hash", folder), CORRUPT, name)
    says(run("ckpt-inspect", "diff", folder, whole), CORRUPT, name)
    says(run("ckpt-inspect", "show", folder, "*"), CORRUPT, name)
    says(converted(folder, case.kind, out), CORRUPT, name)
    assert not out.exists()


def check_converted(folder: Path, case: Case, out: Path) -> None:
    name = Path(case.file).name
    outcome = converted(folder, case.kind, out)
    if name == "config.json" and outcome.code != SOUND:  # whether it names a model is not known
        says(outcome, CORRUPT, name, "is not a JSON object", "--names none")
    else:
        says(outcome, SOUND, name, "not carried")


def check_beside(folder: Path, whole: Path, case: Case, out: Path) -> None:
    """A file beside ends early: verify 1; the others do not read it, and say so."""
    name = Path(case.file).name
    page = run("ckpt-inspect", folder)
    says(page, SOUND, "incomplete", name, "truncated")
    assert "status complete" not in " ".join(page.text.split()), page
    says(run("ckpt-inspect", "verify", folder), DAMAGED, "damaged:", name, "copy it again")
    says(run("ckpt-inspect", "hash", folder), SOUND, "not read of")
    says(run("ckpt-inspect", "ls", folder), SOUND, "not read of")
    says(run("ckpt-inspect", "diff", folder, whole), SOUND, "equal", "not read of")
    check_converted(folder, case, out)


def is_needed(case: Case) -> bool:
    """To resume: its program writes it with others that are there."""
    kept_by_deepspeed = case.kind.name == "deepspeed" and case.file in (
        "optimizer.pt", "scheduler.pt")
    return not kept_by_deepspeed and case.file in (
        "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "optimizer.bin",
        "random_states_0.pkl")


def check_unread(folder: Path, case: Case, out: Path) -> None:
    says(run("ckpt-inspect", "verify", folder), SOUND, "OK:", Path(case.file).name, "not checked")
    check_converted(folder, case, out)


def check_flipped(folder: Path, case: Case) -> None:
    outcome = run("ckpt-inspect", "verify", folder)
    name = Path(case.file).name
    has_checksum = case.part is Part.BESIDE or name.endswith((".distcp", ".pt"))
    if has_checksum:
        says(outcome, DAMAGED, "damaged:", name)
    else:  # no checksum: said of the file, where what it says still makes sense
        codes = {SOUND, DAMAGED, CORRUPT}
        if name == ".metadata":  # a bit of the name of a class makes it another one
            codes.add(UNSUPPORTED)
        assert outcome.code in codes, outcome
        if outcome.code == SOUND and case.part is not Part.UNREAD and name != ".metadata":
            says(outcome, SOUND, "UNPROTECTED", name)


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_a_damaged_file_is_named(case: Case, folders: dict[str, Path], tmp_path: Path) -> None:
    print(f"SHARDWISE_SEED={SEED}")
    whole = folders[case.kind.name]
    folder = tmp_path / "folder"
    shutil.copytree(whole, folder)
    (folder / case.file).chmod(0o644)
    case.damage(folder / case.file)
    out = tmp_path / "out"
    if case.damage is flipped:
        check_flipped(folder, case)
    elif case.damage is removed and case.part is Part.ALONE:
        for command in ((), ("verify",), ("hash",)):  # nothing says that there was one
            outcome = run("ckpt-inspect", *command, folder)
            assert outcome.code in (UNSUPPORTED, NOT_FOUND) and outcome.stdout == "", outcome
    elif case.damage is removed and is_needed(case):
        says(run("ckpt-inspect", "verify", folder), DAMAGED, f"{case.file}: this file")
        says(run("ckpt-inspect", folder), SOUND, "status incomplete", case.file)
    elif case.damage is removed and case.part in (Part.BESIDE, Part.BESIDE_PLAIN, Part.UNREAD):
        says(run("ckpt-inspect", "verify", folder), SOUND, "OK:")
    elif case.part is Part.UNREAD:
        check_unread(folder, case, out)
    elif case.part in (Part.BESIDE, Part.BESIDE_PLAIN):
        check_beside(folder, whole, case, out)
    else:
        check_lacking(folder, whole, case, out)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_whole_folder_is_complete(kind: Kind, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[kind.name]
    says(run("ckpt-inspect", folder), SOUND, "status complete")
    verified = run("ckpt-inspect", "verify", folder)
    beside = [f for f, part in kind.parts.items()
              if part in (Part.BESIDE, Part.BESIDE_PLAIN, Part.UNREAD)]
    says(verified, SOUND, "OK:", *beside)
    outcome = converted(folder, kind, tmp_path / "out")
    says(outcome, SOUND, *beside)
    listed = json.loads(run("ckpt-inspect", folder, "--json").stdout).get("beside", [])
    assert sorted(file["path"] for file in listed) == sorted(beside)


def test_all_that_is_missing_or_truncated_is_listed(tmp_path: Path) -> None:
    """With how much of it is there, in verify, on the page, and in the errors of commands."""
    make_sharded_trainer(tmp_path)
    (tmp_path / SHARD_NAMES[0]).unlink()
    size = (tmp_path / SHARD_NAMES[2]).stat().st_size
    os.truncate(tmp_path / SHARD_NAMES[2], size - 700)
    text = f"truncated: {size - 700} of {size} bytes; copy it again"
    for command in (("verify",), ()):
        outcome = run("ckpt-inspect", *command, tmp_path)
        says(outcome, DAMAGED if command else SOUND, SHARD_NAMES[0], "is missing", SHARD_NAMES[2],
             text)
    for command in (("hash",), ("show", "*")):
        outcome = run("ckpt-inspect", command[0], tmp_path, *command[1:])
        says(outcome, CORRUPT, SHARD_NAMES[0], "is missing, with 2 tensors", SHARD_NAMES[2], text)
    says(run("ckpt-inspect", "ls", tmp_path / INDEX), SOUND, SHARD_NAMES[0], SHARD_NAMES[2], text)


def test_one_shard_alone_is_not_the_whole(tmp_path: Path) -> None:
    make_sharded_trainer(tmp_path)
    for name in (INDEX, SHARD_NAMES[0], SHARD_NAMES[1]):
        (tmp_path / name).unlink()
    says(run("ckpt-inspect", tmp_path), SOUND, "incomplete", INDEX, "1 of the 3 files")
    says(run("ckpt-inspect", "verify", tmp_path), DAMAGED, INDEX)
    says(run("ckpt-inspect", "hash", tmp_path), CORRUPT, INDEX)
    says(run("ckpt-inspect", "hash", tmp_path / SHARD_NAMES[2]), SOUND, "of 2 stored tensors")


FILES = {
    "archive": lambda path: torch.save({"a": torch.ones(4000)}, path),
    "legacy": lambda path: torch.save({"a": torch.ones(4000)}, path,
                                      _use_new_zipfile_serialization=False),
    "safetensors": lambda path: save_file({"a": torch.ones(4000)}, path),
}


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("form", FILES)
def test_a_truncated_file_says_so(form: str, cut: float, tmp_path: Path) -> None:
    path = tmp_path / ("file.safetensors" if form == "safetensors" else "file.pt")
    FILES[form](path)
    size = path.stat().st_size
    kept = int(size * cut)
    os.truncate(path, kept)
    text = (f"truncated after {kept} bytes; copy it again" if form == "archive"
            else f"truncated: {kept} of {size} bytes; copy it again")
    for command in ("verify", "hash", "ls"):
        says(run("ckpt-inspect", command, path), CORRUPT, text)


def test_what_lies_beside_a_named_file_is_not_looked_at(tmp_path: Path) -> None:
    make_trainer(tmp_path)
    os.truncate(tmp_path / "optimizer.pt", 1000)
    outcome = run("ckpt-inspect", "verify", tmp_path / "model.safetensors")
    says(outcome, SOUND, "OK: 1 file")


def test_a_checkpoint_in_a_subfolder_is_named_and_left(tmp_path: Path) -> None:
    make_trainer(tmp_path)
    (tmp_path / "checkpoint-500").mkdir()
    make_trainer(tmp_path / "checkpoint-500")
    os.truncate(tmp_path / "checkpoint-500/optimizer.pt", 1000)
    outcome = run("ckpt-inspect", "verify", tmp_path)
    says(outcome, SOUND, "checkpoint-500: a checkpoint of its own; not checked")

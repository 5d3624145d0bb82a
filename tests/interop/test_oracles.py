"""Python's zipfile and pickletools as oracles: whatever our readers take, they take, too."""

from __future__ import annotations

import io
import pickletools
import random
import zipfile
from pathlib import Path

import pytest
import torch

from hostile import archives, pickles
from hostile.row import OK, Row, pickled, saved
from programs import BIN, GOLDEN, RECORDED, run

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

WITHOUT_CRC = ("zip_nocrc.pt",)  # sums of zero, by torch.serialization.set_crc32_options(False)


def check_with_python(path: Path) -> None:
    """Every member's name, size and CRC-32, and the opcodes of data.pkl with their arguments."""
    with zipfile.ZipFile(path) as opened:
        if path.name not in WITHOUT_CRC:
            assert opened.testzip() is None
        name = next(name for name in opened.namelist() if name.endswith("data.pkl"))
        info = opened.getinfo(name)
        with open(path, "rb") as file:  # read() would compare the CRC-32
            file.seek(info.header_offset)
            header = file.read(30)
            names = sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
            file.seek(info.header_offset + 30 + names)
            data = file.read(info.file_size)
    assert list(pickletools.genops(data))[-1][0].name == "STOP"


def files_of_fixtures() -> list[Path]:
    folders = [GOLDEN, RECORDED]
    files = [path for folder in folders for path in sorted(folder.rglob("*.pt"))]
    return [path for path in files if path.read_bytes()[:2] == b"PK"]


@pytest.mark.parametrize("path", files_of_fixtures(), ids=lambda path: "/".join(path.parts[-4:]))
def test_python_reads_the_archives_of_every_fixture(path: Path) -> None:
    assert run("ckpt-inspect", "ls", path).code == 0
    check_with_python(path)


ACCEPTED = [row for row in (*pickles.rows(), *archives.rows())
            if row.code == OK and not row.name.startswith("Z7")]


@pytest.mark.parametrize("row", ACCEPTED, ids=lambda row: row.name)
def test_python_reads_what_we_take_of_hostile_input(row: Row, tmp_path: Path) -> None:
    check_with_python(row.make(tmp_path))


def mutations(content: bytes, seed: int, count: int = 60):
    """One to three changes each: a bit, a byte, a cut, or a repeated piece."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(changed))
            kind = chance.randrange(4)
            if kind == 0:
                changed[place] ^= 1 << chance.randrange(8)
            elif kind == 1:
                changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif kind == 2:
                del changed[place : place + chance.randint(1, 8)]
            else:
                changed[place:place] = changed[place : place + chance.randint(1, 8)]
        yield bytes(changed)


SMALL = {"w": torch.arange(3.0), "n": [1, None, "text", (2.5, True)]}


@pytest.mark.parametrize("seed", range(4))
def test_python_reads_what_we_take_of_changed_archives(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "changed.pt"
    for content in mutations(saved(SMALL), seed):
        path.write_bytes(content)
        if run("ckpt-inspect", "verify", path).code == OK:
            check_with_python(path)


@pytest.mark.parametrize("seed", range(4))
def test_python_reads_what_we_take_of_changed_pickles(seed: int, tmp_path: Path) -> None:
    """The archive around them is sound: the opcodes decide."""
    with zipfile.ZipFile(io.BytesIO(saved(SMALL))) as opened:
        name = next(name for name in opened.namelist() if name.endswith("data.pkl"))
        data = opened.read(name)
        storage = opened.read(name.replace("data.pkl", "data/0"))
    path = tmp_path / "changed.pt"
    taken = 0
    for content in mutations(data, seed):
        path.write_bytes(pickled(content, **{"data/0": storage}))
        if run("ckpt-inspect", "ls", path).code == OK:
            taken += 1
            check_with_python(path)
    assert taken > 0

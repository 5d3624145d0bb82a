"""A row of the tables: a hostile checkpoint, and what must come of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

OK, DAMAGED, CORRUPT, UNSUPPORTED, NOT_FOUND = 0, 1, 3, 4, 5


@dataclass(frozen=True)
class Row:
    """`name` begins with the class, and has the number of a known vulnerability of that kind."""

    name: str
    make: Callable[[Path], Path]  # fills an empty folder and returns what is opened
    code: int
    says: tuple[str, ...] = ()  # in the error line, or in the output where the code is 0 or 1
    command: tuple[str, ...] = ("hash",)


def archive(members: dict[str, bytes], **options) -> bytes:
    """A zip archive as torch.save lays it out, stored."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as target:
        for name, content in members.items():
            target.writestr(f"archive/{name}", content)
    return buffer.getvalue()


DATA_OFFSET = 30 + len("archive/data.pkl")  # of data.pkl, the first member


def pickled(data: bytes, **members: bytes) -> bytes:
    """An archive with this data.pkl."""
    return archive({"data.pkl": data, "byteorder": b"little", "version": b"3\n", **members})


def saved(value: object, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def file_of(content: bytes, name: str = "file.pt") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make

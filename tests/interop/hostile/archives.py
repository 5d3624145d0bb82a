"""P8 and Z1 to Z9: archives whose parts contradict each other, and tensors that leave them."""

from __future__ import annotations

import functools
import io
import tarfile
import zipfile
from pathlib import Path

import torch

from hostile.row import (
    CORRUPT,
    DAMAGED,
    OK,
    UNSUPPORTED,
    Row,
    archive,
    file_of,
    pickled,
    saved,
)

SOUND = saved({"weight": torch.arange(6.0)})
END, CENTRAL, LOCAL = b"PK\5\6", b"PK\1\2", b"PK\3\4"


@functools.cache
def members() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(SOUND)) as opened:
        return {name.split("/", 1)[1]: opened.read(name) for name in opened.namelist()}


def changed(**contents: bytes | None) -> bytes:
    """The archive with other members; None takes one out."""
    all_members = members() | contents
    return archive({k: v for k, v in all_members.items() if v is not None})


def patched(base: bytes, offset: int, new: bytes) -> bytes:
    return base[:offset] + new + base[offset + len(new) :]


PLAIN = changed()  # without ZIP64 and descriptors: fields lie where APPNOTE has them
FIRST = PLAIN.index(CENTRAL)
SECOND = PLAIN.index(CENTRAL, FIRST + 4)
EOCD = PLAIN.index(END)
ZIP64_END = SOUND.index(b"PK\6\6")


def commented() -> bytes:
    """An end record whose comment is an archive of its own."""
    return patched(PLAIN, EOCD + 20, len(PLAIN).to_bytes(2, "little")) + PLAIN


def overlapping() -> bytes:
    """Every entry of the directory gives the bytes of the first."""
    return patched(PLAIN, SECOND + 42, PLAIN[FIRST + 42 : FIRST + 46])


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            entry = tarfile.TarInfo(name)
            entry.size = 3
            target.addfile(entry, io.BytesIO(b"abc"))
    return buffer.getvalue()


def flipped() -> bytes:
    at = SOUND.index(torch.arange(6.0).numpy().tobytes()) + 5
    return patched(SOUND, at, bytes([SOUND[at] ^ 1]))


def without_crc() -> bytes:
    torch.serialization.set_crc32_options(False)
    try:
        return saved({"weight": torch.arange(6.0)})
    finally:
        torch.serialization.set_crc32_options(True)


def grown(folder: Path) -> Path:
    (folder / "file.pt").write_bytes(SOUND + bytes(1000))
    return folder / "file.pt"


def sparse(folder: Path) -> Path:
    """A terabyte of hole before an end record."""
    with open(folder / "file.pt", "wb") as file:
        file.write(SOUND)
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(SOUND[ZIP64_END:])
    return folder / "file.pt"


def number(value: int) -> bytes:
    content = value.to_bytes(17, "little", signed=True)
    return b"\x8a\x11" + content


def numbers(values: list[int]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def viewing(offset: int, size: list[int], stride: list[int], kind: bytes = b"FloatStorage",
            count: int = 6) -> bytes:
    """{'w': a tensor that views a storage of six floats so}."""
    storage = b"(X\7\0\0\0storagectorch\n" + kind + b"\nX\1\0\0\x000X\3\0\0\0cpu"
    storage += number(count)
    args = b"(" + storage + b"tQ" + number(offset) + numbers(size) + numbers(stride)
    call = b"ctorch._utils\n_rebuild_tensor_v2\n" + args + b"\x89ccollections\nOrderedDict\n)RtR"
    return pickled(b"\x80\x02}X\1\0\0\0w" + call + b"s.", **{"data/0": bytes(24)})


def nameless(arguments: bytes) -> bytes:
    return pickled(b"\x80\x02}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"QK\0)"
                   b")\x89NtRs.")


def view_rows():
    for what, content, word in (
        ("an offset behind the storage", viewing(6, [1], [1]), "w"),
        ("strides that leave the storage", viewing(0, [2, 2], [5, 1]), "w"),
        ("a negative offset", viewing(-1, [1], [1]), "w"),
        ("a product beyond 64 bits", viewing(0, [2**62, 2**62], [2**62, 1]), "w"),
        ("2^63 elements of stride 0", viewing(0, [2**63], [0]), "w"),
        ("2^64 beside a 0", viewing(0, [2**32, 2**32, 0], [0, 0, 0]), "w"),
        ("more elements than the record, CVE-2026-24747", viewing(0, [7], [1], count=7),
         "holds 24 bytes, but the pickle says 28"),
        ("a persistent id of one element", nameless(b"(X\7\0\0\0storaget"), "w"),
        ("a persistent id that is a number", nameless(b"K\1"), "w"),
    ):
        yield Row(f"P8 {what}", file_of(content), CORRUPT, ("file.pt", word))
    yield Row("P8 an unknown storage type", file_of(viewing(0, [6], [1], kind=b"EvilStorage")),
              UNSUPPORTED, ("EvilStorage",))
    yield Row("P8 2^40 elements of stride 0 are read without the memory for them",
              file_of(viewing(0, [2**40], [0])), OK, ("1099511627776",), ("ls", "--json"))


def zip_rows():
    for name, content, code, *says in (
        ("Z1 no end record", SOUND[:-1], CORRUPT, "truncated after", "copy it again"),
        ("Z1 a comment that hides another archive", commented(), CORRUPT, "does not end where"),
        ("Z1 a script in front", b"#!/bin/sh\n" + SOUND, CORRUPT, "@0"),
        ("Z1 a byte behind", SOUND + b"x", CORRUPT, "no zip end record"),
        ("Z1 a comment of no length", patched(PLAIN, EOCD + 20, b"\1"), CORRUPT, ""),
        ("Z2 another name in the header", patched(PLAIN, 30, b"X"), CORRUPT,
         "different names", "@"),
        ("Z2 another size in the header", patched(PLAIN, 22, b"\1"), CORRUPT, "@"),
        ("Z2 another method in the header", patched(PLAIN, 8, b"\x08"), CORRUPT,
         "different flags"),
        ("Z2 an offset into nothing", patched(PLAIN, SECOND + 42, b"\1\2\3\0"), CORRUPT, "@"),
        ("Z3 two entries over the same bytes", overlapping(), CORRUPT, "overlaps"),
        ("Z3 an entry that reaches into the directory",
         patched(patched(PLAIN, SECOND + 20, b"\xff\xff"), SECOND + 24, b"\xff\xff"), CORRUPT, "@"),
        ("Z5 a ZIP64 end record elsewhere", patched(SOUND, ZIP64_END, b"XX"), CORRUPT, "ZIP64"),
        ("Z5 sizes of 0xFFFFFFFF without a ZIP64 field",
         patched(PLAIN, FIRST + 20, b"\xff" * 8), CORRUPT, "@"),
        ("Z6 deflated", archive(members(), compression=zipfile.ZIP_DEFLATED), UNSUPPORTED,
         "compressed"),
        ("Z6 encrypted", patched(patched(PLAIN, FIRST + 8, b"\1"), 6, b"\1"), UNSUPPORTED,
         "encrypted"),
        ("Z8 no data.pkl", changed(**{"data.pkl": None}), CORRUPT, "without data.pkl"),
        ("Z8 big-endian", changed(byteorder=b"big"), UNSUPPORTED, "archive/byteorder", "@"),
        ("Z8 TorchScript", changed(**{"constants.pkl": b"\x80\x02)."}), UNSUPPORTED, "TorchScript"),
        ("Z8 a tar of before torch 0.1.10, CVE-2025-32434", tar(), UNSUPPORTED, "tar"),
        ("Z8 a storage that is missing", changed(**{"data/0": None}), CORRUPT, "weight"),
        ("Z8 a storage of another length", changed(**{"data/0": b"x"}), CORRUPT,
         "holds 1 bytes, but the pickle says 24", "weight"),
        ("Z8 a version that is not a number", changed(version=b"x\n"), CORRUPT,
         "is not a valid version", "archive/version", "@"),
        ("Z8 version 0", changed(version=b"0\n"), CORRUPT, "is not a valid version"),
        ("Z8 a version that PyTorch does not read", changed(version=b"11\n"), UNSUPPORTED,
         "version 11", "archive/version", "@"),
        ("Z8 a version in place of that one", changed(**{".data/version": b"x"}), CORRUPT,
         "archive/.data/version"),
        ("Z8 an alignment that is not a number", changed(**{".storage_alignment": b"v4"}), CORRUPT,
         "is not a valid storage alignment", "archive/.storage_alignment", "@"),
        ("Z8 an id that is not UTF-8", changed(**{".data/serialization_id": b"\xff"}), CORRUPT,
         "not valid UTF-8", "serialization_id", "@"),
        ("Z8 a record longer than any", changed(version=b"3" * 1000), UNSUPPORTED, "limit"),
        ("Z9 an empty file", b"", CORRUPT, "file.pt"),
    ):
        yield Row(name, file_of(content), code, ("file.pt", *says))


def accepted_rows():
    """What is legal, or has no meaning for us, is read: nothing of it is a path or a size."""
    for name, content in (
        ("Z4 a member named ../../evil", changed(**{"../../evil": b"x"})),
        ("Z4 a member named ..\\evil", changed(**{"..\\evil": b"x"})),
        ("Z4 a twin in capitals", changed(**{"DATA.PKL": b"x"})),
        ("Z6 descriptors, as torch.save writes them", SOUND),
        ("Z8 no version", changed(version=None)),
        ("Z8 no byteorder: little-endian, as PyTorch has it", changed(byteorder=None)),
        ("Z8 an alignment that is not true", changed(**{".storage_alignment": b"4096"})),
    ):
        yield Row(name, file_of(content), OK, ("digest of 1 stored tensor",))


def duplicate() -> bytes:
    """Two members called data.pkl."""
    second = archive({**members(), "data.pkX": b"x"})
    return second.replace(b"data.pkX", b"data.pkl")


def crc_rows():
    yield Row("Z7 a wrong CRC-32, which PyTorch does not look at, CVE-2025-10156",
              file_of(flipped()), DAMAGED, ("CRC-32",), ("verify",))
    yield Row("Z7 a CRC-32 of zero is none", file_of(without_crc()), OK, ("unprotected",),
              ("verify",))
    yield Row("Z7 none, although asked for", file_of(without_crc()), DAMAGED, ("no checksum",),
              ("verify", "--require-checksums"))


def rows():
    yield from view_rows()
    yield from zip_rows()
    yield from accepted_rows()
    yield from crc_rows()
    yield Row("Z4 two members of one name", file_of(duplicate()), CORRUPT, ("two zip members",))
    yield Row("Z9 a file that has grown", grown, CORRUPT, ("no zip end record",))
    yield Row("Z9 a terabyte of nothing in the middle", sparse, CORRUPT, ("@",))
    for share in range(1, 20):
        cut = SOUND[: len(SOUND) * share // 20]
        yield Row(f"Z9 cut at {share * 5} %", file_of(cut), CORRUPT,
                  ("file.pt @", f"truncated after {len(cut)} bytes; copy it again"))

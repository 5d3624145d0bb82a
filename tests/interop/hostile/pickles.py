"""P1 to P9: pickles that would run code, that lie about lengths, that never end."""

from __future__ import annotations

import struct

from hostile.row import CORRUPT, DATA_OFFSET, OK, UNSUPPORTED, Row, file_of, pickled

# What the pickles of P1 would run: it leaves a mark in the working directory.
MARK = "executed"
COMMAND = f"touch {MARK}".encode()


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def short(value: bytes) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value


SYSTEM = b"cposix\nsystem\n"
CALL = SYSTEM + text(COMMAND) + b"\x85R"
# name: (pickle, what `show` prints of it, the class that it would call)
RUNNING = {
    "REDUCE of a GLOBAL, CVE-2026-31214, CVE-2026-24151": (CALL + b".", "posix.system"),
    "REDUCE of a STACK_GLOBAL": (
        b"\x80\x04" + short(b"posix") + short(b"system") + b"\x93" + short(COMMAND) + b"\x85R.",
        "posix.system",
    ),
    "INST": (b"(S'" + COMMAND + b"'\niposix\nsystem\n.", "posix.system"),
    "OBJ": (b"(" + SYSTEM + text(COMMAND) + b"o.", "posix.system"),
    "a class deep in a module, CVE-2025-10157": (
        b"casyncio.unix_events\n_UnixSubprocessTransport._start\n(}tR.",
        "asyncio.unix_events",
    ),
    "pkgutil.resolve_name, which picklescan did not know": (
        b"cpkgutil\nresolve_name\n" + text(b"os:system") + b"\x85R" + text(COMMAND) + b"\x85R.",
        "pkgutil.resolve_name('os:system')",
    ),
    "NEWOBJ": (b"cposix\nsystem\n" + text(COMMAND) + b"\x85\x81.", "posix.system"),
    "NEWOBJ_EX": (b"cposix\nsystem\n" + text(COMMAND) + b"\x85}\x92.", "posix.system"),
    "BUILD": (b"cbuiltins\nexec\n)R}" + text(b"__setstate__") + SYSTEM + b"sb.", "builtins.exec"),
    "a call whose result is dropped, as fickling missed it": (CALL + b"0N.", "None"),
}


def running_rows():
    for what, (data, shown) in RUNNING.items():
        body = data[2:] if data.startswith(b"\x80") else data
        inside = b"\x80\x04}" + text(b"w") + body[:-1] + b"s."
        yield Row(f"P1 {what}", file_of(pickled(inside)), OK, (shown,), ("show", "/w"))
    yield Row("P1 the same under another extension, CVE-2025-10155",
              file_of(pickled(CALL + b"."), "model.bin"), OK, ("object",))
    yield Row("P1 a bare pickle is no checkpoint", file_of(CALL + b"."), CORRUPT, ("@0", "archive"))
    yield Row("P1 an error behind the call does not make anybody try harder",
              file_of(pickled(CALL + b"]NNs.")), CORRUPT, (f"@{DATA_OFFSET + len(CALL) + 3}",))
    yield Row("P1 extension registry", file_of(pickled(b"\x82\x01.")), UNSUPPORTED,
              (f"@{DATA_OFFSET}", "registry"))


# (name, pickle, code, offset of the opcode to blame, a word of the problem)
BROKEN = (
    ("P2 SETITEM on a list, CVE-2026-24747", b"]NNs.", CORRUPT, 3, "dict"),
    ("P2 APPEND on a dict, CVE-2026-24747", b"}Na.", CORRUPT, 2, "elements"),
    ("P2 BUILD on a number, CVE-2026-24747", b"K\x01N\x62.", CORRUPT, 3, ""),
    ("P3 value taken from an empty stack", b"\x85.", CORRUPT, 0, ""),
    ("P3 value taken through a mark", b"N(\x85.", CORRUPT, 2, ""),
    ("P3 no STOP", b"N", CORRUPT, 1, "STOP"),
    ("P3 STOP in the middle", b"NN.", CORRUPT, 2, ""),
    ("P3 data behind STOP", b"N.N.", CORRUPT, None, "end"),
    ("P4 a memo index that was never stored", b"h\x05.", CORRUPT, 0, "memo"),
    ("P5 BINUNICODE8 of 2^63 bytes", b"\x8d" + b"\0" * 7 + b"\x80N.", CORRUPT, 9, ""),
    ("P5 BINBYTES8 of 2^64 - 1 bytes", b"\x8e" + b"\xff" * 8 + b".", CORRUPT, 9, ""),
    ("P5 LONG4 of negative length", b"\x8b\xff\xff\xff\xff.", CORRUPT, 0, ""),
    ("P5 FRAME past the end", b"\x95\xff\0\0\0\0\0\0\0N.", CORRUPT, 0, ""),
    ("P7 text that is no UTF-8", b"X\x01\0\0\0\xff.", CORRUPT, 0, "UTF-8"),
    ("P7 a key that cannot be hashed", b"}(]Nu.", CORRUPT, 4, ""),
    ("P7 protocol 6", b"\x80\x06N.", CORRUPT, 0, "protocol"),
    ("P6 2^1000 elements by sharing", b")" + b"2\x86" * 1000 + b".", UNSUPPORTED, None, "shared"),
    ("P9 NEXT_BUFFER", b"\x97.", UNSUPPORTED, 0, "buffer"),
    ("P9 READONLY_BUFFER", b"N\x98.", UNSUPPORTED, 1, "buffer"),
)
MILLION = 1_000_000
# A tuple of a hundred times the tuple before, eight times: a key of 10^16 numbers.
LAUGHS = b"K\x01q\x000" + b"".join(
    b"(" + (b"h" + bytes([i])) * 100 + b"tq" + bytes([i + 1]) + b"0" for i in range(8)
) + b"h\x08"
# One text of a megabyte, and twenty thousand classes that it names.
CLASSES_OF_ONE_NAME = (b"X" + MILLION.to_bytes(4, "little") + b"x" * MILLION + b"q\x000"
                       + b"h\x00h\x00\x930" * 20_000 + b"N.")
# (name, pickle, command, what it says)
LARGE = (
    ("P4 a memo index of 2^32 - 1", b"K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.", "tree", "object"),
    ("P4 a list that contains itself", b"]q\x00h\x00a.", "tree", "object"),
    ("P6 a million nested tuples", b")" + b"\x85" * MILLION + b".", "hash", "digest"),
    ("P6 a million nested lists", b"]" * MILLION + b"a" * (MILLION - 1) + b".", "hash", "digest"),
    ("P6 a million nested dicts", b"}" + b"N}" * MILLION + b"s" * MILLION + b".", "hash",
     "digest"),
    ("P6 a key of 10^16 numbers by sharing", b"}" + LAUGHS + b"Ns.", "tree", "(((("),
    ("P6 a megabyte as the name of 20,000 classes", CLASSES_OF_ONE_NAME, "hash", "digest"),
    ("P7 a key with ESC, NUL and a bell", b"}" + text(b"\x1b[2J\0\a") + b"Ns.", "tree", "\\x1b[2J"),
    ("P7 protocol 0 in letters", b"(dp0\nVw\np1\nI7\ns.", "show", "7"),
)


def rows():
    yield from running_rows()
    for name, data, code, offset, word in BROKEN:
        at = () if offset is None else (f"@{DATA_OFFSET + offset}",)
        yield Row(name, file_of(pickled(data)), code, ("file.pt", *at, word))
    for name, data, command, word in LARGE:
        arguments = ("/w",) if command == "show" else ()
        yield Row(name, file_of(pickled(data)), OK, (word,), (command, *arguments))

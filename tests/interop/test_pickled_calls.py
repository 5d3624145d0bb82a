"""What a pickle may call to build mappings and tensors: read as torch reads it, or refused by name.

No torch.save writes these files. Each is put together from opcodes.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
import torch

from comparing import dtype_name, sha256_of, tensors_in
from programs import BIN, hash_of, refuse, succeed
from reading import load

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED, CORRUPT = 4, 3
STORAGES = {"0": struct.pack("<4f", 0, 1, 2, 3), "1": struct.pack("<4f", 9, 8, 7, 6)}


def name_of(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def list_of(*parts: bytes) -> bytes:
    return b"](" + b"".join(parts) + b"e"


def dict_of(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def set_items(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"(" + b"".join(key + value for key, value in pairs) + b"u"


def call(callable_: bytes, *arguments: bytes) -> bytes:
    return callable_ + tuple_of(*arguments) + b"R"


ORDERED = name_of("collections", "OrderedDict")
DEFAULT = name_of("collections", "defaultdict")
COUNTER = name_of("collections", "Counter")
DICT = name_of("builtins", "dict")
FLOATS, INTS = name_of("torch", "FloatStorage"), name_of("torch", "IntStorage")
REBUILD = name_of("torch._utils", "_rebuild_tensor_v2")
PARAMETER = name_of("torch._utils", "_rebuild_parameter")
WITH_STATE = name_of("torch._utils", "_rebuild_parameter_with_state")
FROM_TYPE = name_of("torch._tensor", "_rebuild_from_type_v2")
TENSOR = name_of("torch", "Tensor")
NO_HOOKS = ORDERED + b")R"
NONE, TRUE, FALSE = b"N", b"\x88", b"\x89"
W, V, X = text("w"), text("v"), text("x")


def storage(key: str = "0", kind: bytes = FLOATS, count: int = 4) -> bytes:
    return tuple_of(text("storage"), kind, text(key), text("cpu"), number(count)) + b"Q"


def tensor_arguments(
    stored: bytes | None = None, stride: int = 1, flag: bytes = FALSE, hooks: bytes = NO_HOOKS
) -> tuple[bytes, ...]:
    sizes = tuple_of(number(4)), tuple_of(number(stride))
    return (stored or storage(), number(0), *sizes, flag, hooks)


def tensor(*given: bytes, **changes) -> bytes:
    return call(REBUILD, *tensor_arguments(*given, **changes))


A, B = tensor(storage("0")), tensor(storage("1"))


def write(path: Path, body: bytes, protocol: int = 2) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80" + bytes([protocol]) + body + b".")
        archive.writestr("archive/byteorder", "little")
        for key, content in STORAGES.items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", "3\n")
    return path


# Read as Python reads them.
READ = {
    "dict_of_pairs": call(DICT, list_of(tuple_of(W, A), list_of(V, B))),
    "dict_of_a_dict": call(DICT, dict_of((W, A))),
    "odict_args": call(ORDERED, list_of(list_of(W, A))),
    "odict_of_a_dict": call(ORDERED, dict_of((W, A), (V, B))),
    "odict_args_and_items": call(ORDERED, list_of(list_of(W, A))) + set_items((X, B)),
    "odict_args_changed_by_items": call(ORDERED, dict_of((W, A))) + set_items((W, B)),
    "odict_of_an_odict": call(ORDERED, ORDERED + b")R" + set_items((W, A))),
    "odict_with_attributes": ORDERED + b")R" + set_items((W, A)) + dict_of((X, number(1))) + b"b",
    "odict_new": ORDERED + b")\x81" + set_items((W, A)),
    "dict_new": DICT + b")\x81" + set_items((W, A)),
    "defaultdict_args_dict": call(DEFAULT, NONE, dict_of((W, A))),
    "defaultdict_args_and_items": call(DEFAULT, NONE, dict_of((W, A))) + set_items((V, B)),
    "defaultdict_plain": call(DEFAULT, name_of("builtins", "list")) + set_items((V, B)),
    "counter_args_and_items": dict_of(
        (text("c"), call(COUNTER, dict_of((W, number(3)))) + set_items((V, number(4)))), (W, A)
    ),
    "counter_noargs_items": dict_of((text("c"), COUNTER + b")R" + set_items((W, A))), (V, B)),
    "counter_of_none": dict_of((text("c"), call(COUNTER, dict_of()))),
    "a_copy_is_not_its_source": dict_of((W, dict_of((W, A)) + b"q\x05"))
    + set_items((V, call(ORDERED, b"h\x05")), (X, b"h\x05" + set_items((X, B)))),
    "dup_keys": b"}" + W + A + b"s" + W + B + b"s",
    "dup_keys_eq": b"}" + number(1) + A + b"s" + TRUE + B + b"sG" + struct.pack(">d", 1) + A + b"s",
    "dup_keys_zero": b"}G" + struct.pack(">d", -0.0) + A + b"s" + FALSE + B + b"s",
    "dup_keys_in_an_odict": ORDERED + b")R" + set_items((W, A), (V, A), (W, B)),
    "dup_keys_tuples": b"}" + tuple_of(number(1), W) + A + b"s" + tuple_of(TRUE, W) + B + b"s",
    "keys_that_differ": b"}" + number(1) + A + b"s" + text("1") + B + b"s",
    "parameter": dict_of((W, call(PARAMETER, A, TRUE, NO_HOOKS))),
    "parameter_with_state": dict_of((W, call(WITH_STATE, A, FALSE, NO_HOOKS, dict_of((X, A))))),
    "attributes": dict_of(
        (W, call(FROM_TYPE, REBUILD, TENSOR, tuple_of(*tensor_arguments()), dict_of((X, TRUE))))
    ),
    "no_hooks": dict_of((W, tensor(hooks=NONE))),
}


@pytest.mark.parametrize("name", READ)
def test_read_as_torch_reads_it(name: str, tmp_path: Path) -> None:
    """Each tensor that torch finds, by its name and to the bit; and after a round trip."""

    def listed(path: Path) -> list:
        document = hash_of(path)
        inside = [t for entry in document["objects"] for t in entry["tensors"]]
        return sorted((t["dtype"], t["sha256"]) for t in document["tensors"] + inside)

    made = write(tmp_path / "made.pt", READ[name])
    theirs = sorted((dtype_name(t.dtype), sha256_of(t)) for _, t in tensors_in(load(made)))
    assert listed(made) == theirs
    if name == "keys_that_differ":
        return
    succeed("ckpt-convert", made, tmp_path / "dcp", "--to", "torch_dist")
    succeed("ckpt-convert", tmp_path / "dcp", tmp_path / "back.pt", "--to", "torch")
    back = tensors_in(load(tmp_path / "back.pt"))
    assert sorted((dtype_name(t.dtype), sha256_of(t)) for _, t in back) == theirs


# torch refuses what is Corrupt here; what is Unsupported it changes, counts or calls.
REFUSED = {
    "dict_of_three": (call(DICT, list_of(tuple_of(W, A, B))), CORRUPT, "not all pairs"),
    "dict_of_text": (call(DICT, list_of(text("ab"))), UNSUPPORTED, "does not hold pairs"),
    "odict_of_two": (
        call(ORDERED, dict_of((W, A)), dict_of((V, B))),
        CORRUPT,
        "too many arguments",
    ),
    "odict_of_a_call": (
        call(ORDERED, call(name_of("my", "pairs"))),
        UNSUPPORTED,
        "mapping or pairs",
    ),
    "odict_new_with_arguments": (
        ORDERED + tuple_of(dict_of((W, A))) + b"\x81", UNSUPPORTED, "NEWOBJ with arguments"),
    "odict_new_ex": (
        ORDERED + b")" + dict_of((W, A)) + b"\x92", UNSUPPORTED, "NEWOBJ with arguments"),
    "odict_appended": (ORDERED + b")R" + A + b"a", CORRUPT, "appends elements to a mapping"),
    "odict_state": (ORDERED + b")R" + number(3) + b"b", UNSUPPORTED, "not given as a dict"),
    "defaultdict_of_a_dict": (
        call(DEFAULT, dict_of((W, A))),
        CORRUPT,
        "neither a callable nor None",
    ),
    "counter_of_a_list": (
        call(COUNTER, list_of(W, W)),
        UNSUPPORTED,
        "something other than a mapping",
    ),
    "a_list_in_a_key": (b"}" + tuple_of(list_of(W)) + A + b"s", CORRUPT, "cannot hash"),
    "setitem_on_tensor": (
        dict_of((W, A + set_items((number(0), b"G" + struct.pack(">d", 99))))),
        UNSUPPORTED,
        "sets afterwards",
    ),
    "build_on_tensor": (
        dict_of((W, A + dict_of((X, TRUE)) + b"b")),
        UNSUPPORTED,
        "a state (BUILD)",
    ),
    "append_on_tensor": (dict_of((W, A + number(1) + b"a")), CORRUPT, "appends elements"),
    "tensor_kw": (
        dict_of((W, REBUILD + tuple_of(*tensor_arguments()) + b"\x81")), CORRUPT, "NEWOBJ"),
    "tensor_newobj_ex": (
        dict_of((W, REBUILD + tuple_of(*tensor_arguments()) + b"}\x92")), CORRUPT, "NEWOBJ"),
    "tensor_of_five": (
        dict_of((W, call(REBUILD, *tensor_arguments()[:5]))),
        CORRUPT,
        "tuple of 6 or 7",
    ),
    "tensor_of_eight": (
        dict_of((W, call(REBUILD, *tensor_arguments(), NONE, NONE))), CORRUPT, "tuple of 6 or 7"),
    "tensor_class": (
        dict_of((W, call(TENSOR, list_of(number(1))))),
        UNSUPPORTED,
        "calling torch.Tensor",
    ),
    "parameter_class": (
        dict_of((W, name_of("torch.nn.parameter", "Parameter") + tuple_of(A) + b"\x81")),
        UNSUPPORTED, "calling torch.nn.parameter.Parameter"),
    "flag": (dict_of((W, tensor(flag=number(1)))), CORRUPT, "neither True nor False"),
    "hooks": (
        dict_of((W, tensor(hooks=ORDERED + b")R" + set_items((X, NONE))))),
        UNSUPPORTED,
        "hooks",
    ),
    "neg_stride": (dict_of((W, tensor(stride=-1))), CORRUPT, "not a valid size"),
    "two_dtypes": (
        dict_of((W, A), (V, tensor(storage("0", INTS)))),
        UNSUPPORTED,
        "two different element types or sizes",
    ),
    "two_sizes": (
        dict_of((W, A), (V, tensor(storage("0", FLOATS, 5)))),
        UNSUPPORTED,
        "two different element types or sizes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    body, code, says = REFUSED[name]
    made = write(tmp_path / "made.pt", body, protocol=4)
    for command in (("hash", made), ("ls", made), ("verify", made)):
        line = refuse(code, "ckpt-inspect", *command)
        assert says in line, line
    refuse(code, "ckpt-convert", made, tmp_path / "out", "--to", "torch_dist")
    assert not (tmp_path / "out").exists()


def test_two_folders_in_one_archive(tmp_path: Path) -> None:
    """torch.load: "file in archive is not in a subdirectory a/"."""
    made = tmp_path / "two.pt"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a/version", "3\n")
        for folder, key in (("b", "1"), ("a", "0")):
            archive.writestr(f"{folder}/data.pkl", b"\x80\x02" + dict_of((W, A)) + b".")
            archive.writestr(f"{folder}/data/0", STORAGES[key])
    with pytest.raises(RuntimeError, match="not in a subdirectory"):
        torch.load(made)
    assert "lies outside the folder" in refuse(CORRUPT, "ckpt-inspect", "hash", made)

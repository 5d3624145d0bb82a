"""Failures are exceptions of their kind, with the file, the place and the hint."""
from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import shardwise as sw


def damaged(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_each_kind_is_a_class_with_what_it_knows(tmp_path: Path, torch_file: Path) -> None:
    with pytest.raises(sw.NotFoundError) as missing:
        sw.open(tmp_path / "nothing")
    assert missing.value.file == str(tmp_path / "nothing")
    assert isinstance(missing.value, LookupError)
    with pytest.raises(sw.CorruptError) as corrupt:
        sw.open(damaged(tmp_path / "short.pt", torch_file.read_bytes()[:-100]))
    assert corrupt.value.file and corrupt.value.offset is not None
    assert str(corrupt.value).startswith(f"{corrupt.value.file} @{corrupt.value.offset}")
    with pytest.raises(sw.UnsupportedError) as unsupported:
        sw.open(damaged(tmp_path / "a.gguf", b"GGUF" + bytes(60)))
    assert unsupported.value.hint is None or unsupported.value.hint in str(unsupported.value)
    for error in (missing.value, corrupt.value, unsupported.value):
        assert isinstance(error, sw.Error)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_builtin_exceptions_catch_them_too() -> None:
    for kind, base in ((sw.InvalidArgumentError, ValueError), (sw.CorruptError, ValueError),
                       (sw.UnsupportedError, NotImplementedError), (sw.MissingKeyError, KeyError),
                       (sw.NotFoundError, LookupError), (sw.AlreadyExistsError, sw.Error),
                       (sw.IoError, sw.Error)):
        assert issubclass(kind, base) and issubclass(kind, sw.Error)
    assert str(sw.MissingKeyError("no", hint="look")) == "no (hint: look)"

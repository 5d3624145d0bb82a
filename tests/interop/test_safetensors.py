"""safetensors files of the official package and of PyTorch's writer; what the package refuses, we
refuse."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

from comparing import dtype_name, sha256_of
from golden.plain import DTYPES, tensor_of
from golden.values import normal
from programs import BIN, hash_of, refuse, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED, CORRUPT = 4, 3
HELD_NOT = ("complex32", "complex128", "float8_e8m0fnu")  # by the package or its torch part


def listed(document: dict) -> dict:
    return {t["key"]: (t["dtype"], tuple(t["shape"]), t["sha256"]) for t in document["tensors"]}


def expected(tensors: dict[str, torch.Tensor]) -> dict:
    return {k: (dtype_name(t.dtype), tuple(t.shape), sha256_of(t)) for k, t in tensors.items()}


def all_dtypes() -> dict[str, torch.Tensor]:
    tensors = {}
    for name in DTYPES:
        if name not in HELD_NOT:
            dtype = getattr(torch, name)
            tensors[f"{name}.matrix"] = tensor_of(dtype, (3, 5), name)
            tensors[f"{name}.scalar"] = tensor_of(dtype, (), name + "0")
            tensors[f"{name}.none"] = tensor_of(dtype, (0, 4), name)
    return tensors


def test_hash_equals_the_packages_reading(tmp_path: Path) -> None:
    tensors = all_dtypes()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt", "n\u00e4me": "x\n"})
    document = hash_of(tmp_path / "a.safetensors")
    assert document["format"] == "safetensors"
    assert listed(document) == expected(tensors)


def test_file_set_with_an_index_is_one_checkpoint(tmp_path: Path) -> None:
    tensors = {f"layer.{i}.weight": normal((i + 1, 3), str(i)) for i in range(6)}
    names = [f"model-{i + 1:05}-of-00003.safetensors" for i in range(3)]
    weight_map = {}
    for i, name in enumerate(names):
        part = dict(list(tensors.items())[i::3])
        save_file(part, tmp_path / name)
        weight_map |= dict.fromkeys(part, name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, index):
        assert listed(hash_of(path)) == expected(tensors)
    assert len(listed(hash_of(tmp_path / names[0]))) == 2

    def refused_with(weight_map: dict) -> str:
        index.write_text(json.dumps({"weight_map": weight_map}))
        return refuse({CORRUPT, 5}, "ckpt-inspect", "hash", tmp_path)

    assert "missing.safetensors" in refused_with({**weight_map, "x": "missing.safetensors"})
    assert "plain file name" in refused_with({**weight_map, "x": "../a.safetensors"})
    assert "layer.0.weight" in refused_with({**weight_map, "layer.0.weight": names[1]})
    assert "index" in refused_with({k: v for k, v in weight_map.items() if "5" not in k})
    index.write_text("{")
    refuse(CORRUPT, "ckpt-inspect", "hash", index)


def test_several_files_without_an_index_are_refused_by_name(tmp_path: Path) -> None:
    for name in "ab":
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    assert "without an index" in refuse(UNSUPPORTED, "ckpt-inspect", "hash", tmp_path)


def test_parts_of_pytorchs_writer_make_whole_tensors(fixtures: Path) -> None:
    """Rows, columns, uneven and empty parts of two ranks: equal to the same state in DCP."""
    parts = listed(hash_of(fixtures / "dcp_w2_hf_writer/ckpt"))
    whole = listed(hash_of(fixtures / "dcp_w2/ckpt"))
    assert len(parts) == 7
    assert parts == {key: whole[f"model.{key}"] for key in parts}


@pytest.mark.parametrize("save_distributed", [False, True])
@pytest.mark.parametrize("consolidate", [False, True])
def test_layouts_of_pytorchs_writer(
    save_distributed: bool, consolidate: bool, tmp_path: Path
) -> None:
    tensors = {"a.weight": normal((4, 3), "a"), "b.weight": normal((2,), "b"), "c": torch.ones(())}
    writer = HuggingFaceStorageWriter(
        str(tmp_path),
        fqn_to_index_mapping={"a.weight": 1, "b.weight": 2, "c": 2},
        save_distributed=save_distributed,
        enable_consolidation=save_distributed and consolidate,
    )
    save(tensors, storage_writer=writer, no_dist=True)
    if save_distributed and consolidate:
        assert listed(hash_of(tmp_path / "sharded")) == expected(tensors)
        tensors["c"].zero_()  # torch 2.11 loses the value of a scalar when it consolidates
    assert listed(hash_of(tmp_path)) == expected(tensors)


def entry(dtype: str, shape: list, begin: object, end: object) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def container(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = entry("F32", [2], 0, 8)
# The format forbids it, the package (0.8.0) takes it.
LENIENT = ("no brace first", "key twice")
# Content, and whether it is sound.
CASES: dict[str, tuple[bytes, bool]] = {
    "sound": (container({"a": GOOD}), True),
    "spaces behind": (container(json.dumps({"a": GOOD}).encode() + b"   "), True),
    "metadata": (container({"__metadata__": {"k": "v"}, "a": GOOD}), True),
    "unknown field": (container({"a": {**GOOD, "note": 1}}), True),
    "empty file of tensors": (container({}, b""), True),
    "empty tensor": (container({"a": GOOD, "b": entry("F32", [0, 3], 8, 8)}), True),
    "length of 100 MB and one": (struct.pack("<Q", 100_000_001) + b"{}", False),
    "length beyond the file": (struct.pack("<Q", 99) + b'{"a":1}', False),
    "cut length": (b"\x02\0\0", False),
    "no brace first": (container(b" " + json.dumps({"a": GOOD}).encode()), False),
    "no object": (container(b"[1]"), False),
    "no JSON": (container(b"{nope}"), False),
    "no UTF-8": (container(b'{"\xff": 1}'), False),
    "key twice": (
        container(b'{"a":%b,"a":%b}' % (json.dumps(GOOD).encode(), json.dumps(GOOD).encode())),
        False,
    ),
    "metadata of a number": (container({"__metadata__": {"k": 1}, "a": GOOD}), False),
    "nested metadata": (container({"__metadata__": {"k": {"l": "m"}}, "a": GOOD}), False),
    "unknown dtype": (container({"a": entry("F33", [2], 0, 8)}), False),
    "begin behind end": (container({"a": entry("F32", [2], 8, 0)}), False),
    "wrong length": (container({"a": entry("F32", [3], 0, 8)}), False),
    "negative": (container({"a": entry("F32", [-2], 0, 8)}), False),
    "fraction": (container({"a": entry("F32", [2.0], 0, 8)}), False),
    "huge number": (
        container(b'{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}}'),
        False,
    ),
    "product overflows": (container({"a": entry("F32", [2**62, 2**62], 0, 8)}), False),
    "hole": (container({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"\0" * 12),
             False),
    "hole before the first": (container({"a": entry("F32", [1], 4, 8)}), False),
    "overlap": (container({"a": GOOD, "b": GOOD}), False),
    "bytes behind": (container({"a": GOOD}, b"\0" * 9), False),
    "bytes missing": (container({"a": GOOD}, b"\0" * 7), False),
    "empty tensor far away": (container({"a": GOOD, "b": entry("F32", [0], 99, 99)}), False),
    "no shape": (container({"a": {"dtype": "F32", "data_offsets": [0, 8]}}), False),
    "three offsets": (container({"a": {**GOOD, "data_offsets": [0, 8, 8]}}), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rules_are_those_of_the_package(name: str, tmp_path: Path) -> None:
    content, sound = CASES[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    if sound:
        with safe_open(path, "pt") as opened:
            assert sorted(listed(hash_of(path))) == sorted(opened.keys())
        return
    if name not in LENIENT:
        with pytest.raises(SafetensorError), safe_open(path, "pt") as opened:
            opened.keys()
    refuse({CORRUPT, UNSUPPORTED}, "ckpt-inspect", "hash", path)


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_types_smaller_than_a_byte_are_refused_by_name(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(container({"a": entry(dtype, [16], 0, 8)}))
    assert dtype in refuse(UNSUPPORTED, "ckpt-inspect", "hash", tmp_path / "a.safetensors")


def test_listing_reads_no_more_than_the_header(tmp_path: Path) -> None:
    content = container({"a": entry("F32", [1 << 28], 0, 1 << 30)}, b"")
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write(content)
        file.truncate(len(content) + (1 << 30))  # a hole on disk
    assert "1 tensor" in succeed("ckpt-inspect", "ls", tmp_path / "a.safetensors").stdout

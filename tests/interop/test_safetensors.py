"""safetensors files of the official package and of PyTorch's writer; what the package refuses, we
refuse."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

from comparing import differences, dtype_name, sha256_of, tensors_in
from golden.plain import DTYPES, PLAIN_CASES, tensor_of
from golden.values import normal
from programs import BIN, GOLDEN, hash_of, refuse, succeed
from reading import load

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

USAGE, UNSUPPORTED, CORRUPT = 2, 4, 3
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
    assert "1 stored tensor" in succeed("ckpt-inspect", "ls", tmp_path / "a.safetensors").stdout


def test_file_that_we_write_is_the_packages_byte_for_byte(tmp_path: Path) -> None:
    tensors = all_dtypes() | {'quote " and \\ and \n': torch.ones(2), "\u00e4\u2028": torch.ones(1)}
    torch.save(tensors, tmp_path / "a.pt")
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    succeed("ckpt-convert", tmp_path / "a.pt", tmp_path / "a.safetensors", "--to", "safetensors")
    ours = (tmp_path / "a.safetensors").read_bytes()
    assert ours == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_tensors_of_a_state_dict_are_carried_and_the_rest_is_listed(
    name: str, generated: Path, tmp_path: Path
) -> None:
    report = succeed(
        "ckpt-convert", generated / f"{name}.pt", tmp_path / "a.safetensors",
        "--to", "safetensors", "--json",
    ).json()  # fmt: skip
    carried = load_file(tmp_path / "a.safetensors")
    lost = {entry["what"] for entry in report["not_carried"]}
    document = hash_of(generated / f"{name}_dcp")
    in_objects = {o["key"] for o in document["objects"]}
    for tensor in document["tensors"]:
        if tensor["dtype"] in ("complex32", "complex128"):
            assert tensor["key"] in lost
        elif tensor["dtype"] != "float8_e8m0fnu":  # which the package's torch part cannot load
            assert sha256_of(carried.pop(tensor["key"])) == tensor["sha256"]
    assert all(key.startswith("float8_e8m0fnu") for key in carried)
    assert in_objects <= lost


def test_safetensors_become_a_state_dict_and_a_dcp_folder(tmp_path: Path) -> None:
    tensors = all_dtypes()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"author": "x"})
    succeed("ckpt-convert", tmp_path / "a.safetensors", tmp_path / "a.pt", "--to", "torch")
    ours = load(tmp_path / "a.pt")
    assert differences(dict(sorted(ours.items())), dict(sorted(tensors.items()))) == []
    succeed("ckpt-convert", tmp_path / "a.safetensors", tmp_path / "a_dcp", "--to", "torch_dist")
    assert listed(hash_of(tmp_path / "a_dcp")) == expected(tensors)
    succeed("ckpt-convert", tmp_path / "a_dcp", tmp_path / "b", "--to", "safetensors")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["model.safetensors"]
    assert listed(hash_of(tmp_path / "b")) == expected(tensors)


def test_parts_become_one_file(fixtures: Path, tmp_path: Path) -> None:
    for name in ("safetensors_sharded", "dcp_w2_hf_writer/ckpt"):
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
        succeed("ckpt-convert", fixtures / name, target, "--to", "safetensors")
        assert listed(hash_of(target)) == listed(hash_of(fixtures / name))
        with safe_open(target, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}


RECORDED_PREFIX = {"": "model."} | {
    f"optimizer.state.{state}.": f"{state}."
    for state in ("fp32_param", "exp_avg", "exp_avg_sq", "momentum_buffer")
}


@pytest.mark.parametrize("name", ["lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2"])
def test_megatron_checkpoint_under_canonical_names(name: str, tmp_path: Path) -> None:
    """Weights, masters and states are those that Megatron held in memory."""
    report = succeed(
        "ckpt-convert", GOLDEN / name / "ckpt", tmp_path / "a.safetensors",
        "--to", "safetensors", "--json",
    ).json()  # fmt: skip
    carried = load_file(tmp_path / "a.safetensors")
    recorded = load_file(GOLDEN / name / "expected/state.safetensors")
    for key, tensor in carried.items():
        prefix = next(p for p in reversed(RECORDED_PREFIX) if key.startswith(p))
        assert torch.equal(tensor, recorded.pop(RECORDED_PREFIX[prefix] + key[len(prefix):])), key
    assert all(key.startswith("step.") for key in recorded)
    lost = {entry["what"] for entry in report["not_carried"]}
    assert {"args", "optimizer.0", "optimizer.1", "rng_state"} <= lost


def test_some_keys_under_other_names(tmp_path: Path) -> None:
    source = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
    succeed(
        "ckpt-convert", source, tmp_path / "a.safetensors", "--to", "safetensors",
        "--exclude", "optimizer.*", "--include", "decoder.*", "--include", "optimizer.*",
        "--rename", "decoder.layers=model.layers", "--rename", "decoder=model",
    )  # fmt: skip
    keys = set(load_file(tmp_path / "a.safetensors"))
    assert "model.layers.0.mlp.linear_fc1.weight" in keys
    assert "model.final_layernorm.weight" in keys
    assert all(key.startswith("model.") for key in keys)
    line = refuse(
        UNSUPPORTED, "ckpt-convert", source, tmp_path / "b", "--to", "torch_dist",
        "--include", "decoder.*",
    )  # fmt: skip
    assert "whole" in line


def test_some_keys_of_a_plain_state_dict(tmp_path: Path) -> None:
    a, b, c = (torch.full((2,), float(i)) for i in range(3))
    tree = {"model": {"w.x": a, "list": [b, {"deep": c}]}, "epoch": 3, "models": a}
    torch.save(tree, tmp_path / "a.pt")

    def made(to: str, *options: str) -> object:
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        succeed("ckpt-convert", tmp_path / "a.pt", target, "--to", to, *options)
        return load(target) if to == "torch" else hash_of(target)

    def same(ours: object, theirs: object) -> bool:
        return differences(ours, theirs) == []

    assert same(
        made("torch", "--exclude", "epoch", "--exclude", "models"), {"model": tree["model"]}
    )
    assert same(
        made("torch", "--rename", "model="),
        {**tree["model"], "epoch": 3, "models": a},
    )
    assert same(
        made("torch", "--include", "model.*", "--rename", "model.list=net.m"),
        {"model": {"w.x": a}, "net": {"m": tree["model"]["list"]}},
    )
    dcp = made("torch_dist", "--include", "*.deep", "--include", "epoch", "--rename", "epoch=step")
    assert [t["key"] for t in dcp["tensors"]] == ["model.list.1.deep"]
    assert [o["key"] for o in dcp["objects"]] == ["step"]

    def refused(*options: str) -> str:
        return refuse(
            USAGE, "ckpt-convert", tmp_path / "a.pt", tmp_path / "no", "--to", "torch", *options
        )

    assert "models" in refused("--rename", "model.w.x=models")
    assert "no key" in refused("--include", "nothing")


def test_tensors_of_every_plain_case_keep_their_pointers(generated: Path, tmp_path: Path) -> None:
    """torch to torch: what a selection leaves is where it was."""
    for name in PLAIN_CASES:
        target = tmp_path / f"{name}.pt"
        succeed("ckpt-convert", generated / f"{name}.pt", target, "--to", "torch")
        before = {at: sha256_of(t) for at, t in tensors_in(load(generated / f"{name}.pt"))}
        assert {at: sha256_of(t) for at, t in tensors_in(load(target))} == before

"""Every way in which torch.save writes a file, and every kind of tensor that it knows: read to the
bit, or refused by name."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from comparing import bytes_of, differences, dtype_name, sha256_of, tensors_in
from golden.plain import PLAIN_CASES, views
from programs import BIN, hash_of, refuse, run, succeed
from reading import load

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED, CORRUPT = 4, 3
# torch 2.11 writes these types to legacy files and cannot read them back.
UNREADABLE_IN_LEGACY = ("float8", "uint16", "uint32", "uint64", "complex32")


def save_zip(tree: object, path: Path, protocol: int) -> None:
    torch.save(tree, path, pickle_protocol=protocol)


def save_legacy(tree: object, path: Path, protocol: int) -> None:
    torch.save(tree, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)


def save_aligned(tree: object, path: Path, protocol: int) -> None:
    with torch.utils.serialization.config.patch("save.storage_alignment", 4096):
        torch.save(tree, path, pickle_protocol=protocol)


def save_without_crc(tree: object, path: Path, protocol: int) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(tree, path, pickle_protocol=protocol)
    finally:
        torch.serialization.set_crc32_options(True)


WRITERS: dict[str, tuple[Callable, int]] = {
    **{f"zip_{protocol}": (save_zip, protocol) for protocol in (2, 3, 4, 5)},
    **{f"legacy_{protocol}": (save_legacy, protocol) for protocol in (2, 3, 4, 5)},
    "aligned": (save_aligned, 2),
    "without_crc": (save_without_crc, 2),
}


def made_of_case(name: str, writer: str) -> object:
    tree = PLAIN_CASES[name]()
    if name == "plain_dtypes" and writer.startswith("legacy"):
        return {k: v for k, v in tree.items() if not k.startswith(UNREADABLE_IN_LEGACY)}
    return tree


def listed(document: dict) -> Counter:
    return Counter(
        (t["key"], t["dtype"], tuple(t["shape"]), t["sha256"]) for t in document["tensors"]
    )


def expected(tree: object) -> Counter:
    return Counter(
        (at, dtype_name(t.dtype), tuple(t.shape), sha256_of(t)) for at, t in tensors_in(tree)
    )


@pytest.fixture(params=WRITERS)
def writer(request) -> str:
    return request.param


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_hash_equals_torchs_reading(name: str, writer: str, tmp_path: Path) -> None:
    save, protocol = WRITERS[writer]
    save(made_of_case(name, writer), tmp_path / "made.pt", protocol)
    assert listed(hash_of(tmp_path / "made.pt")) == expected(load(tmp_path / "made.pt"))


def test_file_converts_to_what_the_same_state_in_an_archive_converts_to(
    writer: str, tmp_path: Path
) -> None:
    """There and back: structure, types, order, opaque objects and tensors."""
    save, protocol = WRITERS[writer]
    trees = {}
    for label, make in (("a", save), ("b", save_zip)):
        path = tmp_path / f"{label}.pt"
        make({name: made_of_case(name, writer) for name in PLAIN_CASES}, path, protocol)
        succeed("ckpt-convert", path, tmp_path / f"{label}_dcp", "--to", "torch_dist")
        succeed("ckpt-convert", tmp_path / f"{label}_dcp", tmp_path / "back.pt", "--to", "torch")
        trees[label] = load(tmp_path / "back.pt")
        (tmp_path / "back.pt").unlink()
    assert differences(trees["a"], trees["b"]) == []


def test_bare_tensors_and_arrays_of_every_kind(writer: str, tmp_path: Path) -> None:
    save, protocol = WRITERS[writer]
    wide = torch.arange(24.0).view(4, 6)
    for number, tree in enumerate(
        (wide, wide.t(), wide[1:3, ::2], torch.tensor(3), torch.nn.Parameter(wide), [wide, wide])
    ):
        path = tmp_path / f"{number}.pt"
        save(tree, path, protocol)
        assert listed(hash_of(path)) == expected(load(path)), number


def test_legacy_file_larger_than_the_first_read(tmp_path: Path) -> None:
    tree = {"text": "x" * 3_000_000, "numbers": list(range(200_000)), "t": torch.arange(5)}
    for protocol in (2, 4):
        save_legacy(tree, tmp_path / "made.pt", protocol)
        assert listed(hash_of(tmp_path / "made.pt")) == expected(tree)


def test_legacy_file_shares_storages_and_keeps_its_objects(tmp_path: Path) -> None:
    save_legacy(views(), tmp_path / "made.pt", 2)
    succeed("ckpt-convert", tmp_path / "made.pt", tmp_path / "dcp", "--to", "torch_dist")
    succeed("ckpt-convert", tmp_path / "dcp", tmp_path / "back.pt", "--to", "torch")
    for key, tensor in views().items():
        if isinstance(tensor, torch.Tensor):
            assert bytes_of(load(tmp_path / "back.pt")[key]) == bytes_of(tensor), key


@pytest.mark.parametrize("protocol", [2, 4])
def test_legacy_file_cut_anywhere_is_corrupt(protocol: int, tmp_path: Path) -> None:
    save_legacy({"a": torch.arange(9.0), "b": [1, "two"]}, tmp_path / "made.pt", protocol)
    content = (tmp_path / "made.pt").read_bytes()
    for length in [*range(70, len(content), 7), len(content) - 1]:
        (tmp_path / "cut.pt").write_bytes(content[:length])
        refuse(CORRUPT, "ckpt-inspect", "hash", tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes(content + b"\0")
    assert "follow" in refuse(CORRUPT, "ckpt-inspect", "hash", tmp_path / "cut.pt")


def test_numpy_arrays_and_scalars_are_carried(tmp_path: Path) -> None:
    tree = {
        "arrays": (numpy.arange(6).reshape(2, 3), numpy.array(["a", "bc"]), numpy.float32(1.5)),
        "structured": numpy.zeros(2, dtype=[("x", "<f8"), ("y", "<i4")]),
        "fortran": numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        "weight": torch.ones(2),
    }
    for protocol in (2, 4, 5):
        torch.save(tree, tmp_path / "made.pt", pickle_protocol=protocol)
        succeed("ckpt-convert", tmp_path / "made.pt", tmp_path / "dcp", "--to", "torch_dist")
        succeed("ckpt-convert", tmp_path / "dcp", tmp_path / "back.pt", "--to", "torch")
        assert differences(load(tmp_path / "back.pt"), tree) == []
        (tmp_path / "back.pt").unlink()
        for path in (tmp_path / "dcp").iterdir():
            path.unlink()
        (tmp_path / "dcp").rmdir()


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


def test_tensor_subclasses_are_tensors_with_attributes(tmp_path: Path) -> None:
    tagged = torch.arange(4.0).as_subclass(Tagged)
    tagged.note, tagged.scale = "per row", torch.tensor([2.0, 3.0])
    torch.save({"t": tagged, "b": torch.nn.Buffer(torch.ones(3))}, tmp_path / "made.pt")
    keys = {t["key"]: t["sha256"] for t in hash_of(tmp_path / "made.pt")["tensors"]}
    assert keys["/t"] == sha256_of(torch.arange(4.0))
    assert set(keys) == {"/t", "/b"}


def test_float8_that_requires_grad_is_what_torch_reads_without_recording(tmp_path: Path) -> None:
    """Elsewhere torch.load refuses what torch.save wrote (docs/errata.md)."""
    path = tmp_path / "made.pt"
    torch.save({"w": torch.ones(3).to(torch.float8_e4m3fn).requires_grad_()}, path)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        load(path)
    with torch.no_grad():
        assert listed(hash_of(path)) == expected(load(path))


def distributed_tensor() -> torch.Tensor:
    """A DTensor of one process, made without process group, as pickle would restore it."""
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate

    mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    return DTensor.from_local(torch.arange(6.0), mesh, [Replicate()], run_check=False)


def test_distributed_tensor_is_an_object_whose_tensor_is_listed(tmp_path: Path) -> None:
    torch.save({"model": {"w": distributed_tensor()}}, tmp_path / "made.pt")
    keys = {t["key"]: t["sha256"] for t in hash_of(tmp_path / "made.pt")["tensors"]}
    assert keys["/model/w/@_local_tensor"] == sha256_of(torch.arange(6.0))


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "_rebuild_sparse_tensor"),
    "sparse_csr": (lambda: torch.eye(3).to_sparse_csr(), "_rebuild_sparse_tensor"),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "_rebuild_qtensor",
    ),
    "meta": (lambda: torch.ones(3, device="meta"), "_rebuild_meta_tensor_no_storage"),
    "conjugated": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "conj"),
    "negated": (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, "neg"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_that_are_no_plain_bytes_are_refused_by_name(name: str, tmp_path: Path) -> None:
    make, mention = REFUSED[name]
    torch.save({"model": {"w": make()}}, tmp_path / "made.pt")
    line = refuse(UNSUPPORTED, "ckpt-inspect", "ls", tmp_path / "made.pt")
    assert mention in line and "/model/w" in line


def test_other_containers_are_refused_by_name(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
    outcome = run("ckpt-inspect", "ls", tmp_path / "script.pt")
    assert outcome.code == UNSUPPORTED and "TorchScript" in outcome.stderr, outcome
    (tmp_path / "old.pt").write_bytes(b"sys_info".ljust(257, b"\0") + b"ustar".ljust(300, b"\0"))
    assert "tar" in refuse(UNSUPPORTED, "ckpt-inspect", "ls", tmp_path / "old.pt")


def test_legacy_file_of_a_big_endian_machine_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    for header in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": False}, {}, []):
        pickle.dump(header, buffer, protocol=2)
    (tmp_path / "big.pt").write_bytes(buffer.getvalue())
    assert "little-endian" in refuse(UNSUPPORTED, "ckpt-inspect", "ls", tmp_path / "big.pt")


def test_more_bytes_than_there_are_numbers_are_refused(tmp_path: Path) -> None:
    """One element, expanded to 2^62: 2^64 bytes, of which a 64-bit count would say 0."""
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1).expand(2**31, 2**31)}, path)
    for command in (("ls", path), ("verify", path), ("hash", path), ("diff", path, path)):
        assert "2^63 - 1 bytes" in refuse(UNSUPPORTED, "ckpt-inspect", *command)

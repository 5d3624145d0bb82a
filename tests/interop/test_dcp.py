"""DCP folders in every form that PyTorch writes: compressed, safetensors inside, ranks on their
own, .metadata of older versions."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat

from comparing import bytes_of, differences, sha256_of, with_text_as_keys
from golden.plain import PLAIN_CASES, DTYPES, tensor_of
from programs import BIN, REPOSITORY, hash_of, refuse, run, succeed
from reading import load

sys.path.insert(0, str(REPOSITORY / "tests/formats"))
from read_torch_dist import TorchDist

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED, CORRUPT = 4, 3
FORMS = ("dcp_w2_zstd", "dcp_w2_safetensors_fmt", "dcp_w2_multifile", "dcp_w2_threads2")


@pytest.mark.parametrize("name", FORMS)
def test_every_form_holds_the_same_state(name: str, fixtures: Path) -> None:
    plain = hash_of(fixtures / "dcp_w2/ckpt")
    assert hash_of(fixtures / name / "ckpt")["digest"] == plain["digest"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_converts_to_the_same_file(name: str, fixtures: Path, tmp_path: Path) -> None:
    """PyTorch itself cannot read the safetensors form back."""
    made = {}
    for which in (name, "dcp_w2"):
        succeed("ckpt-convert", fixtures / which / "ckpt", tmp_path / which, "--to", "torch")
        made[which] = (tmp_path / which).read_bytes()
    assert differences(load(tmp_path / name), load(tmp_path / "dcp_w2")) == []


def writable(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def test_damaged_zstd_streams_are_found(fixtures: Path, tmp_path: Path) -> None:
    folder = writable(fixtures / "dcp_w2_zstd/ckpt", tmp_path / "ckpt")
    path = folder / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    succeed("ckpt-convert", folder, tmp_path / "before.pt", "--to", "torch")
    unnoticed = 0
    for at in range(0, len(content), 97):
        content[at] ^= 0x20
        path.write_bytes(content)
        content[at] ^= 0x20
        outcome = run("ckpt-convert", folder, tmp_path / "after.pt", "--to", "torch", "--force")
        if outcome.code == 0:  # such as a bit of a header that says nothing of the content
            after = load(tmp_path / "after.pt")
            assert differences(after, load(tmp_path / "before.pt")) == [], at
            unnoticed += 1
        else:
            assert outcome.code in (CORRUPT, UNSUPPORTED), outcome
    assert unnoticed < len(content) / 97 / 4


def change_metadata(folder: Path, change) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def set_transforms(*names: str):
    def change(metadata) -> None:
        for place in metadata.storage_data.values():
            place.transform_descriptors = list(names)

    return change


def test_other_transformations_are_refused_by_name(fixtures: Path, tmp_path: Path) -> None:
    folder = writable(fixtures / "dcp_w2_zstd/ckpt", tmp_path / "ckpt")
    change_metadata(folder, set_transforms("stream.rot13/1"))
    assert "stream.rot13/1" in refuse(UNSUPPORTED, "ckpt-inspect", "hash", folder)
    change_metadata(folder, set_transforms("stream.zstd/2"))
    assert "stream.zstd/2" in refuse(UNSUPPORTED, "ckpt-inspect", "hash", folder)
    change_metadata(folder, set_transforms())
    refuse(CORRUPT, "ckpt-inspect", "hash", folder)


def test_stream_that_inflates_to_more_than_its_tensor_is_refused(
    fixtures: Path, tmp_path: Path
) -> None:
    zstandard = shutil.which("zstd")
    if zstandard is None:
        pytest.skip("zstd is not installed")
    folder = writable(fixtures / "dcp_w2_zstd/ckpt", tmp_path / "ckpt")
    bomb = subprocess.run([zstandard, "-c"], input=bytes(64 << 20), capture_output=True, check=True)
    (folder / "__0_0.distcp").write_bytes(bomb.stdout)

    def change(metadata) -> None:
        for index, place in list(metadata.storage_data.items()):
            if place.relative_path != "__0_0.distcp":
                continue
            metadata.storage_data.pop(index)
            if index.fqn == "model.w_even":
                place.offset, place.length = 0, len(bomb.stdout)
                metadata.storage_data[index] = place
            elif index.fqn in metadata.state_dict_metadata:
                del metadata.state_dict_metadata[index.fqn]
        known = metadata.state_dict_metadata
        for index in [i for i in metadata.storage_data if i.fqn not in known]:
            del metadata.storage_data[index]

    change_metadata(folder, change)
    line = refuse(CORRUPT, "ckpt-inspect", "hash", folder)
    assert "decompresses to more than" in line and "__0_0.distcp" in line


def save_as_safetensors(tree: dict, folder: Path) -> None:
    writer = dcp.FileSystemWriter(folder, serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save(tree, storage_writer=writer, no_dist=True)


def test_safetensors_form_of_every_type(tmp_path: Path) -> None:
    tree = {
        name: tensor_of(getattr(torch, name), (3, 5), name)
        for name in DTYPES
        if name not in ("complex32", "complex128", "float8_e8m0fnu")
    } | {"scalar": torch.tensor(3.5), "none": torch.ones(0, 4), "step": 3, "text": "x"}
    save_as_safetensors(tree, tmp_path / "made")
    document = hash_of(tmp_path / "made")
    found = Counter((t["key"], t["sha256"]) for t in document["tensors"])
    tensors = {k: v for k, v in tree.items() if isinstance(v, torch.Tensor)}
    assert found == Counter((k, sha256_of(v)) for k, v in tensors.items())
    assert sorted(o["key"] for o in document["objects"]) == ["step", "text"]
    store = TorchDist(tmp_path / "made")
    assert {k: store.read(k) for k in store.tensors} == {k: bytes_of(t) for k, t in tensors.items()}
    succeed("ckpt-convert", tmp_path / "made", tmp_path / "made.pt", "--to", "torch")
    assert differences(load(tmp_path / "made.pt"), tree) == []


def test_safetensors_form_that_contradicts_its_metadata_is_corrupt(tmp_path: Path) -> None:
    save_as_safetensors({"a": torch.ones(2, 3), "b": torch.ones(4)}, tmp_path / "made")

    def forget(metadata) -> None:
        metadata.state_dict_metadata.pop("b")
        for index in [i for i in metadata.storage_data if i.fqn == "b"]:
            del metadata.storage_data[index]

    change_metadata(tmp_path / "made", forget)
    assert "'b'" in refuse(CORRUPT, "ckpt-inspect", "hash", tmp_path / "made")


def test_an_object_in_the_bytes_of_a_safetensors_blob_is_corrupt(tmp_path: Path) -> None:
    """As .metadata has it, it lies behind the tensor, whose true place is behind a header."""
    save_as_safetensors({"a": torch.ones(2, 3), "step": 3}, tmp_path / "made")

    def move(metadata) -> None:
        places = {index.fqn: place for index, place in metadata.storage_data.items()}
        file = tmp_path / "made" / places["a"].relative_path
        places["step"].offset = places["a"].offset + places["a"].length
        places["step"].length = file.stat().st_size - places["step"].offset

    change_metadata(tmp_path / "made", move)
    assert "shares bytes with" in refuse(CORRUPT, "ckpt-inspect", "ls", tmp_path / "made")


RANK_PROGRAM = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}",
                                     rank=int(sys.argv[1]), world_size=2)
rank = int(sys.argv[1])
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(42.0).view(7, 6)
tree = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "same": torch.arange(5),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]), "rank": rank, "epoch": 7}
dcp.save(tree, storage_writer=FileSystemWriter(sys.argv[3]), use_collectives=False)
"""


@pytest.fixture(scope="module")
def saved_alone(tmp_path_factory) -> Path:
    """What two ranks write that do not talk to each other: __0.metadata and __1.metadata."""
    folder = tmp_path_factory.mktemp("alone")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(rank), folder / "store", folder / "made"]
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return folder / "made"


def test_ranks_that_save_alone_make_one_checkpoint(saved_alone: Path, tmp_path: Path) -> None:
    assert sorted(p.name for p in saved_alone.glob("__*.metadata")) == [
        "__0.metadata",
        "__1.metadata",
    ]
    document = hash_of(saved_alone)
    whole = torch.arange(42.0).view(7, 6)
    assert {t["key"]: t["sha256"] for t in document["tensors"]} == {
        "rows": sha256_of(whole),
        "columns": sha256_of(whole),
        "same": sha256_of(torch.arange(5)),
    }
    store = TorchDist(saved_alone)
    assert {k: hashlib.sha256(store.read(k)).hexdigest() for k in store.tensors} == {
        t["key"]: t["sha256"] for t in document["tensors"]
    }
    objects = [(o.get("file", ""), o["key"]) for o in document["objects"]]
    assert sorted(objects) == [
        ("", "epoch"), ("", "rank"), ("__1.metadata", "epoch"), ("__1.metadata", "rank"),
    ]  # fmt: skip


def test_missing_rank_of_those_that_save_alone_is_noticed(
    saved_alone: Path, tmp_path: Path
) -> None:
    folder = writable(saved_alone, tmp_path / "ckpt")
    (folder / "__1.metadata").unlink()
    assert "elements" in refuse(CORRUPT, "ckpt-inspect", "hash", folder)


def as_torch_2_0(metadata) -> None:
    """No storage_meta, no version, no transform_descriptors; TensorProperties without a state
    tuple of its own had come by 2.0 already."""
    for name in ("storage_meta", "version"):
        metadata.__dict__.pop(name, None)
    for place in metadata.storage_data.values():
        place.__dict__.pop("transform_descriptors", None)


def test_metadata_of_older_versions(generated: Path, tmp_path: Path) -> None:
    for name in PLAIN_CASES:
        folder = writable(generated / f"{name}_dcp", tmp_path / name)
        before = hash_of(folder)
        change_metadata(folder, as_torch_2_0)
        assert hash_of(folder) == before
        for protocol in (2, 3, 4, 5):
            metadata = pickle.loads((folder / ".metadata").read_bytes())
            (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=protocol))
            assert hash_of(folder) == before


# torch's extension wants a module that inflates; this one asks the system's own zstd library.
ZSTANDARD = """
import ctypes, ctypes.util, io
library = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
library.ZSTD_getFrameContentSize.restype = ctypes.c_uint64
library.ZSTD_decompress.restype = ctypes.c_size_t

class ZstdCompressor:
    pass

class ZstdDecompressor:
    def stream_reader(self, stream):
        data = stream.read()
        size = library.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
        room = ctypes.create_string_buffer(size)
        count = library.ZSTD_decompress(
            room, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
        assert count == size, (count, size)
        return io.BytesIO(room.raw)
"""
CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[2], sys.argv[3])
"""


@pytest.mark.parametrize("name", ["plain_nested", "plain_dtypes", "plain_views"])
def test_pytorch_reads_what_we_compress(name: str, generated: Path, tmp_path: Path) -> None:
    source = generated / f"{name}.pt"
    succeed("ckpt-convert", source, tmp_path / "dcp", "--to", "torch_dist", "--zstd", 3)
    succeed("ckpt-convert", source, tmp_path / "plain", "--to", "torch_dist")
    places = pickle.loads((tmp_path / "dcp/.metadata").read_bytes()).storage_data.values()
    assert all(place.transform_descriptors == ["stream.zstd/1"] for place in places)
    assert hash_of(tmp_path / "dcp")["digest"] == hash_of(tmp_path / "plain")["digest"]
    (tmp_path / "zstandard.py").write_text(ZSTANDARD)
    subprocess.run(
        [sys.executable, "-c", CONVERT, tmp_path, tmp_path / "dcp", tmp_path / "back.pt"],
        check=True,
    )
    succeed("ckpt-convert", tmp_path / "dcp", tmp_path / "ours.pt", "--to", "torch")
    ours = load(tmp_path / "ours.pt")
    assert differences(with_text_as_keys(ours), load(tmp_path / "back.pt")) == []


def test_compressed_folders_are_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    tree = {"a": torch.arange(3_000_000), "b": torch.zeros(100, 100), "c": [1, "text"]}
    torch.save(tree, tmp_path / "a.pt")
    made = []
    for threads in (1, 2, 5):
        folder = tmp_path / str(threads)
        succeed(
            "ckpt-convert", tmp_path / "a.pt", folder, "--to", "torch_dist", "--zstd", 5,
            "-j", threads,
        )  # fmt: skip
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert made[0] == made[1] == made[2]
    assert len(made[0]["__0_0.distcp"]) < 12_000_000


def test_compression_is_for_torch_dist_alone(generated: Path, tmp_path: Path) -> None:
    source, target = generated / "plain_nested_dcp", tmp_path / "a.pt"
    line = refuse(2, "ckpt-convert", source, target, "--to", "torch", "--zstd", 3)
    assert "torch_dist" in line
    outcome = run("ckpt-convert", source, tmp_path / "b", "--to", "torch_dist", "--zstd", 20)
    assert outcome.code == 2


def test_a_path_that_leads_into_an_object_is_corrupt(tmp_path: Path) -> None:
    """planner_data may say anything: nothing is put into a value of the source."""
    state = {"object": {"a": 1}, "tensor": torch.ones(2)}
    dcp.save(state, checkpoint_id=tmp_path / "in", no_dist=True)

    def nest(metadata) -> None:
        keys = list(metadata.state_dict_metadata)
        tensor = next(key for key in keys if key.startswith("tensor"))
        inner = next(key for key in keys if key.startswith("object"))
        metadata.planner_data = {inner: (inner,), tensor: (inner, *tensor.split("."))}
        renamed = f"{inner}.{tensor}"
        entry = metadata.state_dict_metadata.pop(tensor)
        metadata.state_dict_metadata[renamed] = entry
        metadata.planner_data[renamed] = metadata.planner_data.pop(tensor)
        for index in [index for index in metadata.storage_data if index.fqn == tensor]:
            moved = type(index)(renamed, index.offset, index.index)
            metadata.storage_data[moved] = metadata.storage_data.pop(index)

    change_metadata(tmp_path / "in", nest)
    line = refuse(CORRUPT, "ckpt-convert", tmp_path / "in", tmp_path / "out.pt", "--to", "torch")
    assert "into the value of another key" in line


# What torch.load reads of an archive before its pickle.
RECORDS = ("byteorder", "version", ".storage_alignment", ".data/serialization_id")


def flip_in_record(path: Path, name: str) -> None:
    """One bit of a member of the first archive in the file."""
    content = bytearray(path.read_bytes())
    header = content.index(f"archive/{name}".encode()) - 30
    sizes = (int.from_bytes(content[header + at : header + at + 2], "little") for at in (26, 28))
    content[header + 30 + sum(sizes)] ^= 0x80
    path.write_bytes(content)


@pytest.mark.parametrize("name", RECORDS)
def test_an_entry_that_pytorch_refuses_for_its_records_is_refused(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    dcp.save({"tensor": torch.ones(300)}, checkpoint_id=folder, no_dist=True)
    flip_in_record(folder / "__0_0.distcp", name)
    with pytest.raises(dcp.CheckpointException):
        dcp.load({"tensor": torch.zeros(300)}, checkpoint_id=folder, no_dist=True)
    for to in ("torch", "torch_dist"):
        line = refuse(CORRUPT, "ckpt-convert", folder, tmp_path / "out", "--to", to)
        assert "CRC-32" in line and f"archive/{name}" in line
    refuse(CORRUPT, "ckpt-inspect", "hash", folder)
    assert run("ckpt-inspect", "verify", folder).code == 1


@pytest.mark.parametrize("name", ["data.bin", "__0_0.DISTCP", "x.json", "x.safetensors"])
def test_entries_are_compared_with_metadata_in_files_of_any_name(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    dcp.save({"tensor": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    (folder / "__0_0.distcp").rename(folder / name)

    def rename(metadata) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = name

    change_metadata(folder, rename)
    succeed("ckpt-inspect", "verify", folder)

    def state_otherwise(metadata) -> None:
        metadata.state_dict_metadata["tensor"].properties.dtype = torch.int32

    change_metadata(folder, state_otherwise)
    outcome = run("ckpt-inspect", "verify", folder)
    assert outcome.code == 1 and "says int32 (3)" in outcome.stdout + outcome.stderr, outcome

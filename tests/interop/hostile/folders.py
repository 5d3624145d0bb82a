"""D1 to D11: folders of PyTorch's distributed checkpoint and of Megatron."""

from __future__ import annotations

import pickle
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.metadata import TensorProperties, TensorStorageMetadata

import damage as bad
from hostile.pickles import COMMAND, SYSTEM, text
from hostile.row import CORRUPT, DAMAGED, NOT_FOUND, OK, UNSUPPORTED, Row, saved
from programs import GOLDEN
from reading import iteration_folder, load, model_file, rank_file

TORCH, DIST = (GOLDEN / f"lw_muon_bf16_{name}_dp2" / "ckpt" for name in ("torch", "torch_dist"))
Make = Callable[[Path], Path]


def plain(change: Callable[[Metadata], object] = lambda metadata: None) -> Make:
    """A folder of two tensors and a number, with a change in its .metadata."""

    def make(folder: Path) -> Path:
        state = {"a": torch.arange(6.0).reshape(2, 3), "b": {"c": torch.tensor(True), "step": 7}}
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        change(metadata)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
        return folder

    return make


def megatron(source: Path, change: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> Path:
        root = shutil.copytree(source, folder / "ckpt", copy_function=shutil.copyfile)
        change(root)
        return root

    return make


def metadata_of(content: bytes) -> Make:
    def make(folder: Path) -> Path:
        plain()(folder)
        (folder / ".metadata").write_bytes(content)
        return folder

    return make


def chunks(*boxes: tuple[tuple, tuple]) -> Callable[[Metadata], None]:
    """Other chunks of the tensor of (2, 3)."""

    def change(metadata: Metadata) -> None:
        entry = metadata.state_dict_metadata["a"]
        entry.chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
        place = metadata.storage_data.pop(index_of(metadata, "a"))
        for number, (offsets, _) in enumerate(boxes):
            index = MetadataIndex("a", torch.Size(offsets), number)
            metadata.storage_data[index] = place

    return change


def index_of(metadata: Metadata, key: str) -> MetadataIndex:
    return next(index for index in metadata.storage_data if index.fqn == key)


def placed(key: str, **change: object) -> Callable[[Metadata], None]:
    def edit(metadata: Metadata) -> None:
        index = index_of(metadata, key)
        metadata.storage_data[index] = replace(metadata.storage_data[index], **change)

    return edit


def sized(*size: int) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.state_dict_metadata["a"].size = torch.Size(size)

    return change


def without(*names: str) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        for name in names:
            vars(metadata).pop(name)

    return change


def with_fields(**fields: object) -> Callable[[Metadata], None]:
    return lambda metadata: vars(metadata).update(fields)


def metadata_rows():
    call = SYSTEM + text(COMMAND) + b"\x85R."
    for name, make, code, *says in (
        ("D1 .metadata that runs code, CVE-2026-24150, ZDI-CAN-31759, GHSA-ppvg-47fv-5f4w",
         metadata_of(b"\x80\x02" + call), CORRUPT, ".metadata", "an object of class Metadata"),
        ("D1 .metadata is a number", metadata_of(b"\x80\x02K\x01."), CORRUPT, "class Metadata"),
        ("D1 .metadata is empty", metadata_of(b""), CORRUPT, ".metadata", "STOP"),
        ("D1 entries are a number", plain(with_fields(state_dict_metadata=1)), CORRUPT,
         ".metadata", "dict"),
        ("D1 an unknown type", plain(lambda m: setattr(m.state_dict_metadata["a"].properties,
                                                       "dtype", "float32")), CORRUPT, "'a'"),
        ("D2 a chunk outside", plain(chunks(((1, 0), (2, 3)))), CORRUPT, "'a'"),
        ("D2 chunks that overlap", plain(chunks(((0, 0), (2, 2)), ((0, 1), (2, 1)))), CORRUPT,
         "'a'"),
        ("D2 a hole", plain(chunks(((0, 0), (1, 3)))), CORRUPT, "'a'"),
        ("D2 a chunk of another dimension", plain(chunks(((0,), (2,)))), CORRUPT, "'a'"),
        ("D2 a product beyond 64 bits", plain(sized(2**40, 2**40)), CORRUPT, "'a'"),
        ("D2 strides beyond 64 bits beside a 0", plain(sized(0, 2**32, 2**32)), CORRUPT, "'a'",
         "2^63 - 1"),
        ("D3 a path above the folder", plain(placed("a", relative_path="../x")), CORRUPT,
         "plain file name", "'a'"),
        ("D3 an absolute path", plain(placed("a", relative_path="/etc/passwd")), CORRUPT,
         "plain file name", "'a'"),
        ("D3 a missing file", plain(placed("a", relative_path="__9_9.distcp")), CORRUPT,
         "__9_9.distcp", "is missing"),
        ("D3 an offset of 2^63", plain(placed("a", offset=2**63)), CORRUPT, "'a'"),
        ("D3 a length beyond the file", plain(placed("a", length=2**40)), CORRUPT, "__0_0.distcp",
         "'a'", "truncated: "),
        ("D3 two entries at one place", plain(lambda m: placed(
            "b.step", **vars(m.storage_data[index_of(m, "a")]))(m)), CORRUPT, "shares bytes", "@"),
        ("D4 another type than the entry's",
         plain(lambda m: setattr(m.state_dict_metadata["a"].properties, "dtype", torch.int32)),
         CORRUPT, "__0_0.distcp @", "'a'", "int32", "float32"),
        ("D4 another shape than the entry's", plain(lambda m: (sized(3, 2)(m), chunks(
            ((0, 0), (3, 2)))(m))), CORRUPT, "__0_0.distcp @", "'a'"),
        ("D5 an unknown transformation",
         plain(placed("a", transform_descriptors=["stream.lz4/1"])), UNSUPPORTED, "'a'",
         "stream.lz4/1"),
        ("D5 two transformations", plain(placed(
            "a", transform_descriptors=["stream.zstd/1", "stream.zstd/1"])), UNSUPPORTED, "'a'"),
        ("D5 zstd that is none", plain(placed("a", transform_descriptors=["stream.zstd/1"])),
         CORRUPT, "__0_0.distcp @", "'a'", "zstd"),
    ):
        yield Row(name, make, code, says)
    for name, change in (
        ("D1 a call in planner_data is kept as names, ZDI-CAN-32834, GHSA-h6w6-rm56-8m58",
         with_fields(planner_data=Calling())),
        ("D1 fields of torch 2.0: no version, no storage_meta", without("version", "storage_meta")),
        ("D1 a version that does not exist yet", with_fields(version="99.0")),
    ):
        yield Row(name, plain(change), OK, ("digest of 2 stored tensors and 1 object",))


class Calling:
    """What Python would run when it loads the pickle."""

    def __reduce__(self):
        import posix

        return posix.system, (COMMAND.decode(),)


def zstd_bomb(folder: Path) -> Path:
    """A frame of blocks that repeat one byte: 4 KB that say they are 128 MiB."""
    block = struct.pack("<I", 131072 << 3 | 1 << 1)[:3] + b"\0"  # RLE of 128 KiB
    last = struct.pack("<I", 131072 << 3 | 1 << 1 | 1)[:3] + b"\0"
    frame = b"\x28\xb5\x2f\xfd" + b"\0" + b"\x58" + block * 1023 + last
    plain()(folder)
    path = folder / "__0_0.distcp"
    offset = path.stat().st_size
    path.write_bytes(path.read_bytes() + frame)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    placed("a", offset=offset, length=len(frame), transform_descriptors=["stream.zstd/1"])(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    return folder


def split(**paths: object) -> Make:
    return plain(with_fields(planner_data={"a": ("a",), "b.c": ("b", "c"), "b.step": ("b", "step"),
                                           **paths}))


def planner_rows():
    """Listed as they are; what needs the paths, a conversion to torch, refuses them."""
    for name, paths in (
        ("D6 two keys with one path", {"a": ("b", "c")}),
        ("D6 a path with None", {"a": (None,)}),
        ("D6 a path that is a number", {"a": 7}),
        ("D6 an index of 2^62", {"a": ("a", 2**62)}),
        ("D6 a value below a value", {"b.c": ("a", "c")}),
    ):
        yield Row(name, split(**paths), CORRUPT, (".metadata", f"'{next(iter(paths))}'"),
                  ("convert", "--to", "torch"))


def many_keys(folder: Path) -> Path:
    """10^5 keys; the longer runs of tests/corrupt take 10^6 chunks of one key."""

    def change(metadata: Metadata) -> None:
        place = next(iter(metadata.storage_data.values()))
        for i in range(100_000):
            metadata.state_dict_metadata[f"k{i}"] = metadata.state_dict_metadata["b.step"]
            metadata.storage_data[MetadataIndex(f"k{i}")] = replace(place, offset=i)

    return plain(change)(folder)


def nested_tuples(folder: Path) -> Path:
    (folder / ".metadata").write_bytes(b"\x80\x02)" + b"\x85" * 10_000_000 + b".")
    return folder


def million_objects(folder: Path) -> Path:
    """A .metadata of 10^6 objects, written without the million Python objects."""
    seen: dict[bytes, int] = {}

    def once(content: bytes) -> bytes:
        """The first time with a place in the memo, then recalled from there."""
        if content in seen:
            return b"h%c" % seen[content]
        seen[content] = len(seen)
        return content + b"q%c" % seen[content]

    def known(name: str) -> bytes:
        return once(b"ctorch.distributed.checkpoint." + name.encode() + b"\n")

    def short(content: bytes) -> bytes:
        return b"X" + len(content).to_bytes(4, "little") + content

    def place(i: int, key: bytes) -> bytes:
        return b"".join((
            known("metadata\nMetadataIndex"), b")\x81}(", once(short(b"fqn")), key,
            once(short(b"index")), b"N", once(short(b"offset")), b"Nub",
            known("filesystem\n_StorageInfo"), b")\x81}(", once(short(b"relative_path")),
            once(short(b"__0_0.distcp")), once(short(b"offset")), b"J", i.to_bytes(4, "little"),
            once(short(b"length")), b"K\x01ub"))

    keys = [short(b"%d" % i) for i in range(1_000_000)]
    with open(folder / ".metadata", "wb") as file:
        file.write(b"\x80\x02" + known("metadata\nMetadata") + b")\x81}(")
        file.write(short(b"state_dict_metadata") + b"}(")
        file.write(keys[0] + known("metadata\nBytesStorageMetadata") + b")\x81")
        value = known("metadata\nBytesStorageMetadata") + b")\x81"
        file.writelines(key + value for key in keys[1:])
        file.write(b"u" + short(b"storage_data") + b"}(" + place(0, keys[0]))
        head, middle, tail = re.split(b"KEY|\x01\0\0\0", place(1, b"KEY"))
        file.writelines(head + keys[i] + middle + i.to_bytes(4, "little") + tail
                        for i in range(1, len(keys)))
        file.write(b"uub.")
    with open(folder / "__0_0.distcp", "wb") as file:
        file.truncate(1_000_000)
    return folder


def ranks_alone(folder: Path) -> Path:
    plain()(folder)
    (folder / ".metadata").rename(folder / "__0.metadata")
    return folder


def ranks_that_disagree(folder: Path) -> Path:
    ranks_alone(folder)
    metadata = pickle.loads((folder / "__0.metadata").read_bytes())
    sized(3, 3)(metadata)
    (folder / "__1.metadata").write_bytes(pickle.dumps(metadata, protocol=4))
    return folder


def two_common_states(root: Path) -> None:
    def change(metadata: Metadata) -> None:
        key = next(k for k in metadata.state_dict_metadata if k.startswith("rng_state/"))
        metadata.state_dict_metadata["common_state/shard_0_1"] = (
            metadata.state_dict_metadata.pop(key))
        place = metadata.storage_data.pop(MetadataIndex(key))
        metadata.storage_data[MetadataIndex("common_state/shard_0_1")] = place

    bad.edit_metadata(change)(root)


def tracker(content: str) -> Make:
    return megatron(TORCH, bad.tracker(content))


def backend(content: str) -> Make:
    def change(root: Path) -> None:
        (iteration_folder(root) / "metadata.json").write_text(content)

    return megatron(DIST, change)


def folder_rows():
    for name, make, code, *says in (
        ("D5 a zstd bomb", zstd_bomb, CORRUPT, "__0_0.distcp @", "'a'", "decompresses to more"),
        ("D7 a hundred thousand keys in one place", many_keys, CORRUPT, "truncated"),
        ("D8 ranks that saved alone and disagree", ranks_that_disagree, CORRUPT, "__1.metadata",
         "'a'"),
        ("D8 a common state in two places", megatron(DIST, two_common_states), CORRUPT,
         "common.pt", "common_state/shard_0_1"),
        ("D9 an unknown backend", backend('{"sharded_backend": "zarr"}'), UNSUPPORTED, "zarr",
         "metadata.json"),
        ("D9 metadata.json is junk", backend("{"), CORRUPT, "metadata.json"),
        ("D9 a tracker with junk", tracker("three"), CORRUPT, "latest_checkpointed_iteration.txt"),
        ("D9 a tracker that names a path", tracker("../x"), CORRUPT,
         "latest_checkpointed_iteration.txt"),
        ("D9 a tracker of a release that is not there", tracker("release"), NOT_FOUND, "release"),
    ):
        logical = ("--logical",) if name.startswith("D8 a common") else ()
        yield Row(name, make, code, says, ("hash", *logical))
    yield Row("D7 a million objects", million_objects, OK, ("1000000 objects",),
              ("ls", "--limit", "3"))
    yield Row("D7 ten million nested tuples", nested_tuples, CORRUPT, (".metadata",), ("ls",))
    yield Row("D8 a rank that saved alone", ranks_alone, OK, ("digest of 2 stored tensors",))


def rename(metadata: Metadata, key: str, renamed: str) -> None:
    metadata.state_dict_metadata[renamed] = metadata.state_dict_metadata.pop(key)
    for index in [i for i in metadata.storage_data if i.fqn == key]:
        metadata.storage_data[replace(index, fqn=renamed)] = metadata.storage_data.pop(index)


def legacy_buffers(metadata: Metadata) -> None:
    """As Megatron-Core before 0.15 named what it could not load later."""
    key = "optimizer.state.exp_avg.output_layer.weight"
    rename(metadata, key, f"{key}/flattened_range")


def flat_buffers(metadata: Metadata) -> None:
    """As the DistributedOptimizer's dp_reshardable buckets are named."""
    name = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)"
    rename(metadata, "optimizer.state.exp_avg.output_layer.weight",
           f"{name}.bucket_idx_0.exp_avg")


def empty_pair(metadata: Metadata) -> None:
    """A weight and its master, of no elements, in no chunks."""
    for key, dtype in (("w", torch.bfloat16), ("optimizer.state.fp32_param.w", torch.float32)):
        empty = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size([0, 4]), [])
        metadata.state_dict_metadata[key] = empty


def lose_master(optimizers: list) -> None:
    optimizers[0]["fp32_from_fp16_params"][0].pop()


def lose_group(optimizers: list) -> None:
    optimizers[1]["optimizer"]["param_groups"].pop()


def same_on_two_ranks(root: Path) -> None:
    shutil.copyfile(rank_file(root, 0), rank_file(root, 1))


def optimizer_rows():
    for name, make, code, *says in (
        ("D10 flattened_range of Megatron-Core before 0.15",
         megatron(DIST, bad.edit_metadata(legacy_buffers)), CORRUPT, "flattened_range"),
        ("D10 flat buffers of the ranks (dp_reshardable)",
         megatron(DIST, bad.edit_metadata(flat_buffers)), CORRUPT, "dp_group_idx_0"),
        ("D10 lists of different length", megatron(TORCH, bad.edit_rank(1, lose_master)), CORRUPT,
         "layer_wise_optimizer_1.pt"),
        ("D11 a rank is missing", megatron(TORCH, lambda r: rank_file(r, 1).unlink()),
         CORRUPT, "layer_wise_optimizer_1.pt", "is missing"),
        ("D11 one parameter on two ranks", megatron(TORCH, same_on_two_ranks), CORRUPT,
         "layer_wise_optimizer_1.pt"),
        ("D11 lists of groups that disagree", megatron(TORCH, bad.edit_rank(1, lose_group)),
         CORRUPT, "layer_wise_optimizer_1.pt"),
    ):
        yield Row(name, make, code, says, ("hash", "--logical"))


def running_common(root: Path) -> None:
    tree = load(iteration_folder(root) / "common.pt")
    tree["calling"] = Calling()
    (iteration_folder(root) / "common.pt").write_bytes(saved(tree))


def running_model(root: Path) -> None:
    tree = load(model_file(root))
    tree["calling"] = Calling()
    torch.save(tree, model_file(root))


def rows():
    yield from metadata_rows()
    yield from planner_rows()
    yield from folder_rows()
    yield from optimizer_rows()
    yield Row("P1 common.pt runs code, CVE-2026-24152", megatron(DIST, running_common), OK,
              ("digest",))
    yield Row("P1 the model file runs code, CVE-2026-24150", megatron(TORCH, running_model), OK,
              ("digest",))
    extra = megatron(DIST, lambda r: (iteration_folder(r) / "__7_0.distcp").write_text("x"))
    yield Row("D2 tensors in no chunks", plain(empty_pair), OK, ("OK:",), ("verify",))
    yield Row("D3 a file that nothing names", extra, DAMAGED, ("__7_0.distcp",), ("verify",))

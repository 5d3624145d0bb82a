"""Folders with `.metadata` and .distcp files made by hand, most with one change that has a meaning.

Chunks in any grid and order, in files of any name, views and Parameters as payload; then a chunk
is doubled, dropped, moved or grown, a place, a length, a type or a name is changed.
"""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from checks import check_content, check_reads, check_verifies, look_at
from comparing import dtype_name
from oracles import (
    TooLarge,
    Unreadable,
    content,
    contents_of_hash,
    read_dcp_flat,
    read_dcp_nested,
    read_torch_save,
    requires_grad_in,
)
from session import Made, Session
from state_dict_cases import random_tensor

DTYPES = (
    torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8,
    torch.complex64, torch.float8_e4m3fn, torch.uint16,
)  # fmt: skip
KEYS = (
    "w", "a.b", "a", "", "x/y", "\x1b[31mR", "n\nl", "../up", "\u00fc", "k" * 200, "a.b.c", "0",
    "layers.0.w", "\u202e", "\x9b2J", "state.0.exp_avg",
)  # fmt: skip
ODD_FILES = (
    ".hidden", "a b", "\x1b[1m.distcp", "__0_0.DISTCP", "x" * 250, "-rf", "~", "nl\n.distcp",
    "\u00fc.distcp",
)  # fmt: skip
ODD_PATHS = ("../x", "/etc/passwd", "", ".", "..", "absent", ".metadata", "a\0b", "__0_0.distcp\n")
SIZES = (0, 1, 2, 3, 4, 5, 8)
Cut = tuple[int, int]  # offset and size


@dataclass
class Folder:
    entries: dict[str, object] = field(default_factory=dict)
    places: dict[MetadataIndex, _StorageInfo] = field(default_factory=dict)
    files: dict[str, bytearray] = field(default_factory=dict)
    paths: dict[str, tuple] = field(default_factory=dict)  # planner_data

    def store(self, name: str, index: MetadataIndex, data: bytes) -> None:
        file = self.files.setdefault(name, bytearray())
        self.places[index] = _StorageInfo(name, len(file), len(data))
        file += data

    def write(self, folder: Path, choice: random.Random) -> None:
        folder.mkdir()
        planner = choice.choice((None, self.paths))
        metadata = Metadata(self.entries, planner_data=planner, storage_data=self.places)
        self.overwrite(folder, metadata, choice.choice((2, 4, 5)))

    def overwrite(self, folder: Path, metadata: Metadata, protocol: int = 4) -> None:
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=protocol))


class FolderMaker:
    def __init__(self, choice: random.Random):
        self.choice = choice
        self.names = ["__0_0.distcp", "__1_0.distcp"]
        if choice.random() < 0.1:
            self.names.append(choice.choice(ODD_FILES))
        self.folder = Folder()

    def make(self) -> Folder:
        for key in self.choice.sample(KEYS, self.choice.randint(1, 5)):
            self.folder.paths[key] = self.choice.choice(((key,), tuple(key.split("."))))
            if self.choice.random() < 0.15:
                self.add_object(key)
            else:
                self.add_tensor(key)
        return self.folder

    def add_object(self, key: str) -> None:
        value = self.choice.choice((1, "s", {"a": [1]}, None, torch.ones(2), [None], {}, []))
        self.folder.entries[key] = BytesStorageMetadata()
        self.folder.store(self.choice.choice(self.names), MetadataIndex(key), saved(value))

    def add_tensor(self, key: str) -> None:
        shape = torch.Size(self.choice.choices(SIZES, k=self.choice.randint(0, 3)))
        dtype = self.choice.choice(DTYPES)
        tensor = random_tensor(self.choice, dtype, shape.numel()).reshape(shape)
        boxes = grid(self.choice, shape)
        chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
        properties = TensorProperties(dtype=dtype, requires_grad=self.choice.random() < 0.2)
        self.folder.entries[key] = TensorStorageMetadata(properties, shape, chunks)
        for number, (offsets, sizes) in enumerate(boxes):
            part = tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            index = MetadataIndex(key, torch.Size(offsets), self.choice.choice((number, None, 7)))
            self.folder.store(self.choice.choice(self.names), index, saved(self.payload(part)))

    def payload(self, part: torch.Tensor) -> torch.Tensor:
        """The same values in one of the forms that torch.save keeps."""
        form = self.choice.random()
        if form < 0.75 or part.dim() < 2:
            return part.contiguous().clone()
        if form < 0.85:
            return part.transpose(0, 1).contiguous().transpose(0, 1)
        if form < 0.92 and part.is_floating_point():
            return torch.nn.Parameter(part.clone(), requires_grad=False)
        flat = torch.cat([part.reshape(-1), part.reshape(-1)])
        return flat[part.numel() :].reshape(part.shape)  # a view into a larger storage


def saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def grid(choice: random.Random, shape: torch.Size) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    axes = [cuts(choice, size) if choice.random() < 0.7 else [(0, size)] for size in shape]
    cells = list(itertools.product(*axes))
    choice.shuffle(cells)
    return [(tuple(o for o, _ in cell), tuple(s for _, s in cell)) for cell in cells]


def cuts(choice: random.Random, size: int) -> list[Cut]:
    if size == 0:
        return [(0, 0)]
    points = sorted({0, size, *(choice.randint(0, size) for _ in range(choice.randint(0, 3)))})
    return [(start, end - start) for start, end in itertools.pairwise(points)]


@dataclass
class Target:
    """What a mutation may change: one tensor, one of its chunks, one stored place."""

    choice: random.Random
    folder: Folder

    def __post_init__(self) -> None:
        entries = self.folder.entries
        tensors = [key for key in entries if isinstance(entries[key], TensorStorageMetadata)]
        self.key = self.choice.choice(tensors)
        self.tensor: TensorStorageMetadata = entries[self.key]
        self.number = self.choice.randrange(len(self.tensor.chunks))
        self.chunk = self.tensor.chunks[self.number]
        self.index = self.choice.choice(list(self.folder.places))
        self.place = self.folder.places[self.index]


def stepped(target: Target, sizes: torch.Size, steps: tuple[int, ...]) -> torch.Size:
    changed = list(sizes)
    changed[target.choice.randrange(len(changed))] += target.choice.choice(steps)
    return torch.Size(changed)


def double_chunk(target: Target) -> None:
    target.tensor.chunks.append(copy.deepcopy(target.chunk))


def drop_chunk(target: Target) -> None:
    target.tensor.chunks.pop(target.number)


def resize_chunk(target: Target) -> None:
    target.chunk.sizes = stepped(target, target.chunk.sizes, (-1, 1))


def move_chunk(target: Target) -> None:
    target.chunk.offsets = stepped(target, target.chunk.offsets, (-1, 1))


def resize_tensor(target: Target) -> None:
    target.tensor.size = stepped(target, target.tensor.size, (-1, 1, 2**40, 2**62))


def add_empty_chunk(target: Target) -> None:
    zeros = torch.Size([0] * len(target.tensor.size))
    target.tensor.chunks.append(ChunkStorageMetadata(zeros, zeros))


def add_dimension(target: Target) -> None:
    target.chunk.offsets = torch.Size([*target.chunk.offsets, 0])
    target.chunk.sizes = torch.Size([*target.chunk.sizes, 1])


def state_other_type(target: Target) -> None:
    target.tensor.properties.dtype = target.choice.choice(DTYPES)


def call_it_an_object(target: Target) -> None:
    target.folder.entries[target.key] = BytesStorageMetadata()


def move_place(target: Target) -> None:
    target.place.offset += target.choice.choice((-1, 1, -64, 64, 2**40, 2**63 - 1))


def resize_place(target: Target) -> None:
    steps = (-1, 1, 64, -64, -target.place.length, 2**62)
    target.place.length += target.choice.choice(steps)


def lead_elsewhere(target: Target) -> None:
    target.place.relative_path = target.choice.choice(ODD_PATHS)


def swap_places(target: Target) -> None:
    other = target.choice.choice(list(target.folder.places))
    places = target.folder.places
    places[target.index], places[other] = places[other], places[target.index]


def share_place(target: Target) -> None:
    other = target.choice.choice(list(target.folder.places))
    target.folder.places[target.index] = copy.deepcopy(target.folder.places[other])


def rename_place(target: Target) -> None:
    place = target.folder.places.pop(target.index)
    index = MetadataIndex(target.key, target.index.offset, target.index.index)
    target.folder.places[index] = place


def transform(target: Target) -> None:
    forms = (["stream.zstd/1"], ["x"], [], ["stream.zstd/1", "stream.zstd/1"])
    target.place.transform_descriptors = target.choice.choice(forms)


def flip_bit(target: Target) -> None:
    file = target.folder.files[target.choice.choice(list(target.folder.files))]
    if file:
        file[target.choice.randrange(len(file))] ^= 1 << target.choice.randrange(8)


def cut_file(target: Target) -> None:
    file = target.folder.files[target.choice.choice(list(target.folder.files))]
    del file[-target.choice.randint(1, 80) :]


Mutation = Callable[[Target], None]
MUTATIONS: tuple[Mutation, ...] = (
    double_chunk, drop_chunk, resize_chunk, move_chunk, resize_tensor, add_empty_chunk,
    add_dimension, state_other_type, call_it_an_object, move_place, resize_place, lead_elsewhere,
    swap_places, share_place, rename_place, transform, flip_bit, cut_file,
)  # fmt: skip


def mutate(choice: random.Random, folder: Folder) -> str:
    """The name of what was done."""
    if choice.random() < 0.25:
        return "unchanged"
    mutation = choice.choice(MUTATIONS)
    try:
        mutation(Target(choice, folder))
    except (IndexError, ValueError):  # no tensor, or one without dimensions
        return "unchanged"
    return mutation.__name__


def run(session: Session, choice: random.Random) -> None:
    folder = FolderMaker(choice).make()
    session.case = mutate(choice, folder)
    folder.write(session.source, choice)
    look_at(session, choice)
    verified = session.run("ckpt-inspect", "verify", session.source).code
    hashed = session.run("ckpt-inspect", "hash", session.source, "--json")
    if verified == 0 and hashed.code != 0:
        session.report("verify finds what hash refuses", hashed)
    try:
        flat = read_dcp_flat(session.source)
    except TooLarge:
        flat = None
    except Exception as problem:
        flat = None
        if hashed.code == 0:
            session.report("success only with what torch reads", f"{hashed}\n  {problem!r}")
    if flat is not None and hashed.code == 0:
        tensors = {k: flat[k] for k, e in folder.entries.items() if hasattr(e, "properties")}
        compare_hash(session, tensors, hashed.json())
    convert(session, flat, verified)


def compare_hash(session: Session, tensors: dict[str, torch.Tensor], listing: dict) -> None:
    ours = contents_of_hash(listing)
    for key, tensor in tensors.items():
        if content(tensor) not in ours.get(key, {}):
            told = f"{key!r}: {ours.get(key)} | torch: {content(tensor)}"
            session.report("hash lists what torch reads", told)
            return


def convert(session: Session, flat: dict | None, verified: int) -> None:
    """To a file, and to another folder; both hold what PyTorch reads of the source."""
    made = session.convert("ckpt-convert", session.source, "new.pt", "--to", "torch")
    options = ("--to", "torch_dist", "--verify")
    again = session.convert("ckpt-convert", session.source, "again", *options)
    if flat is None:
        for result in filter(None, (made, again)):
            session.report("success only with what torch reads", result.outcome)
        return
    if made is not None:
        check_file(session, made, verified)
    if again is not None:
        check_folder(session, again, flat)
        check_verifies(session, again, verified)


def check_file(session: Session, made: Made, verified: int) -> None:
    try:
        source = read_dcp_nested(session.source)  # PyTorch does not apply requires_grad
    except Unreadable as problem:
        session.report("success only with what torch reads", f"{made.outcome}\n  {problem}")
        return
    read = check_reads(session, made, lambda: read_torch_save(made.path))
    if read is not None:
        check_content(session, made, source, read)
        check_verifies(session, made, verified)


def check_folder(session: Session, made: Made, flat: dict) -> None:
    read = check_reads(session, made, lambda: read_dcp_flat(made.path))
    if read is None:
        return
    check_content(session, made, flat, read)
    stated, before = requires_grad_in(made.path), requires_grad_in(session.source)
    if stated != before:
        session.report("requires_grad is listed", f"{made.outcome}\n  {stated} | {before}")

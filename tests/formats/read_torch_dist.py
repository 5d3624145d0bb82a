"""Reads a torch_dist folder, as docs/formats/torch_dist.md describes it, with Python's standard
library alone. Nothing that a pickle names is imported or called.

    store = TorchDist(FOLDER)
    store.tensors    {key: Tensor(dtype, shape, chunks)}
    store.objects    {key: its place}
    store.read(key)  all bytes of a tensor, row-major
    store.load(key)  an object; store.common() and store.metadata_json() give what lies beside
"""

import collections
import io
import itertools
import json
import math
import pickle
import struct
import sys
import zipfile
from pathlib import Path

Tensor = collections.namedtuple("Tensor", "dtype shape chunks")
Chunk = collections.namedtuple("Chunk", "offsets sizes place")
View = collections.namedtuple("View", "dtype shape data")  # a tensor in an archive

SIZES = {}
for size, names in {
    1: "int8 uint8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu",
    2: "int16 uint16 float16 bfloat16",
    4: "int32 uint32 float32 complex32",
    8: "int64 uint64 float64 complex64",
    16: "complex128",
}.items():
    SIZES.update(dict.fromkeys(names.split(), size))
STORAGES = {"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
            "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
            "Bool": "bool", "ComplexDouble": "complex128", "ComplexFloat": "complex64"}  # fmt: skip


class Bad(Exception):
    """The folder contradicts itself, or holds what this reader does not know."""


class Inert:
    """In place of an instance of any class: what the pickle gave it."""

    def __new__(cls, *args, **named):
        self = object.__new__(cls)
        self.args, self.items, self.state = args, [], None
        return self

    def __setstate__(self, state):
        self.state = state

    def __setitem__(self, key, value):
        self.items.append((key, value))

    def append(self, value):
        self.items.append(value)


def fields(value, names):
    """The attributes of an inert object; None for those that it has not."""
    state = value.state if isinstance(value, Inert) and isinstance(value.state, dict) else {}
    return [state.get(name) for name in names.split()]


def view(dtype, data, offset, shape, stride):
    if dtype not in SIZES:
        raise Bad(f"element type {dtype}")
    size, count = SIZES[dtype], math.prod(shape)
    dense = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if not count or all(n == 1 or s == d for n, s, d in zip(shape, stride, dense)):
        found = data[offset * size : (offset + count) * size]
    else:
        places = (
            offset + sum(i * s for i, s in zip(index, stride))
            for index in itertools.product(*map(range, shape))
        )
        found = b"".join(data[at * size : (at + 1) * size] for at in places)
    if len(found) != count * size:
        raise Bad("a tensor goes beyond its storage")
    return View(dtype, tuple(shape), found)


# What is taken for what it means; all else is inert.
KNOWN = {
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): lambda storage, *place: view(*storage, *place[:3]),
    ("torch._utils", "_rebuild_tensor_v3"): lambda storage, *place: view(
        place[5].__name__, storage[1], *place[:3]
    ),
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda tensor, *rest: tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): lambda make, kind, args, state: make(*args),
}


class Unpickler(pickle.Unpickler):
    storage_bytes = None

    def find_class(self, module, name):
        return KNOWN.get((module, name)) or type(name, (Inert,), {"__module__": module})

    def persistent_load(self, pid):
        kind, storage, key, _, count = pid
        dtype = STORAGES.get(storage.__name__[: -len("Storage")])  # None: untyped, count in bytes
        data = self.storage_bytes(key)
        if kind != "storage" or len(data) != count * SIZES.get(dtype, 1):
            raise Bad(f"storage {key} has {len(data)} bytes for {count} elements of {dtype}")
        return dtype, data


def load_archive(data):
    """The value of a torch.save archive. zipfile compares each member's CRC-32."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename.partition("/")[2]: info for info in archive.infolist()}

        def member(name):
            if name not in members:
                raise Bad(f"the archive has no {name}")
            members[name].CRC = members[name].CRC or None  # 0: not computed
            return archive.read(members[name])

        if "byteorder" in members and member("byteorder") != b"little":
            raise Bad("storages are big-endian")
        reader = Unpickler(io.BytesIO(member("data.pkl")))
        reader.storage_bytes = lambda key: member(f"data/{key}")
        return reader.load()


class TorchDist:
    def __init__(self, folder):
        self.folder, self.tensors, self.objects = Path(folder), {}, {}
        names = [self.folder / ".metadata"]
        if not names[0].exists():  # ranks that saved without talking to each other
            names = sorted(self.folder.glob("__*.metadata"), key=lambda p: int(p.stem[2:]))
        for name in names or [self.folder / ".metadata"]:
            self.add(Unpickler(io.BytesIO(name.read_bytes())).load())

    def add(self, root):
        state_dict, self.planner, storage = fields(
            root, "state_dict_metadata planner_data storage_data"
        )
        places = {}
        for index, place in storage.items():
            found = tuple(fields(index, "fqn offset"))
            if places.setdefault(found, place) is not place:
                raise Bad(f"{found} has two places")
        for key, entry in state_dict.items():
            if type(entry).__name__ == "BytesStorageMetadata":
                self.objects.setdefault(key, places.pop((key, None), None))
                continue
            properties, shape, chunks = fields(entry, "properties size chunks")
            dtype = properties.state[0].__name__
            tensor = self.tensors.setdefault(key, Tensor(dtype, shape, []))
            if tensor[:2] != (dtype, shape):
                raise Bad(f"{key}: ranks disagree on its type or shape")
            for offsets, sizes in (fields(chunk, "offsets sizes") for chunk in chunks):
                place = places.pop((key, offsets), None)
                if not any((offsets, sizes) == known[:2] for known in tensor.chunks):
                    tensor.chunks.append(Chunk(offsets, sizes, place))
        if places:
            raise Bad(f"stored, but of no tensor or object: {sorted(places, key=str)[0]}")

    def entry(self, key, place, dtype=None):
        """The object or tensor at a place."""
        path, at, length, changes = fields(
            place, "relative_path offset length transform_descriptors"
        )
        if path is None:
            raise Bad(f"{key}: storage_data has no place for it")
        if changes:
            raise Bad(f"{key}: {changes} is not read here")
        with open(self.folder / path, "rb") as file:
            file.seek(at)
            if file.read(4) != b"PK\3\4" and dtype:  # SerializationFormat.SAFETENSORS
                file.seek(at)
                (size,) = struct.unpack("<Q", file.read(8))
                found = json.loads(file.read(size))[key]
                begin, end = found["data_offsets"]
                file.seek(at + 8 + size + begin)
                return View(dtype, tuple(found["shape"]), file.read(end - begin))
            file.seek(at)
            data = file.read(length)
        try:
            return load_archive(data)
        except (zipfile.BadZipFile, Bad) as error:
            raise Bad(f"{key}: {path} at {at}: {error}") from error

    def load(self, key):
        return self.entry(key, self.objects[key])

    def read(self, key):
        dtype, shape, chunks = self.tensors[key]
        size, count = SIZES[dtype], math.prod(shape)
        whole, held = bytearray(count * size), bytearray(count)
        for offsets, sizes, place in chunks:
            part = self.entry(key, place, dtype)
            if part[:2] != (dtype, sizes) or len(part.data) != math.prod(sizes) * size:
                raise Bad(f"{key}: the chunk at {offsets} is not a {dtype} of {sizes}")
            if any(start + n > end for start, n, end in zip(offsets, sizes, shape)):
                raise Bad(f"{key}: the chunk at {offsets} goes beyond the tensor")
            row = sizes[-1] if sizes else 1
            for number, index in enumerate(itertools.product(*map(range, sizes[:-1]))):
                at = 0
                for i, start, n in itertools.zip_longest(index, offsets, shape, fillvalue=0):
                    at = at * n + start + i
                if any(held[at : at + row]):
                    raise Bad(f"{key}: two chunks hold element {at}")
                held[at : at + row] = b"\1" * row
                whole[at * size : (at + row) * size] = part.data[
                    number * row * size : (number + 1) * row * size
                ]
        if 0 in held:
            raise Bad(f"{key}: no chunk holds element {held.index(0)}")
        return bytes(whole)

    def common(self):
        return load_archive((self.folder / "common.pt").read_bytes())

    def metadata_json(self):
        return json.loads((self.folder / "metadata.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    opened = TorchDist(sys.argv[1])
    for name, tensor in opened.tensors.items():
        print(name, tensor.dtype, list(tensor.shape), len(opened.read(name)))
    print(f"{len(opened.tensors)} tensors, {len(opened.objects)} objects")

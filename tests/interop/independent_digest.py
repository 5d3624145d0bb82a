"""The digest of docs/formats/canonical_encoding.md, and pickles read as it reads them: nothing is
called, an object is what its pickle says. With independent_reader.py, which shares nothing with
Shardwise or with other tests.
"""

from __future__ import annotations

import functools
import pickle
import re
import struct
import types
from hashlib import sha256
from pathlib import Path

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs/formats/canonical_encoding.md"
LISTED = PAGE.read_text().partition("and what\n  follows from these:\n")[2].partition(".\n")[0]
LEFT_OUT_OF_ARGS = set(re.findall(r"`(\w+)`", LISTED))
NOT_OBJECTS = {"args", "optimizer", "rng_state", "rerun_state_machine", "content_metadata"}
assert {"save", "cuda_graph_modules"} <= LEFT_OUT_OF_ARGS


class Made:
    """An object as its pickle says it: what would be called, with what, and what would be set."""

    def __new__(cls, *args):
        made = object.__new__(cls)
        made.args, made.items, made.pairs, made.state = args, [], [], ()
        made.__dict__.update(extend=made.items.extend)
        return made

    def __setstate__(self, state):
        self.state = (state,)

    def __setitem__(self, key, value):
        self.pairs.append((key, value))


@functools.cache
def made_class(module: str, name: str) -> type:
    return type(name, (Made,), {"path": (module, name)})


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        kept = (module == "torch" and name.endswith("Storage")) or module == "torch._utils"
        if kept or (module, name) == ("collections", "OrderedDict"):
            return super().find_class(module, name)
        if name == "_rebuild_from_type_v2":  # a tensor with attributes, which have no meaning here
            return lambda function, _class, arguments, _attributes: function(*arguments)
        return made_class(module, name)


def load(file):
    inert = types.SimpleNamespace(Unpickler=Unpickler, __name__="inert")
    return torch.load(file, pickle_module=inert, weights_only=False)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return number(len(value)) + value


def encode(value) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"T", False: b"F"}[value]
    if isinstance(value, type):
        return b"G" + text(value.path[0]) + text(value.path[1])
    if isinstance(value, float):
        return b"D" + struct.pack("<d", value)
    for kind, letter in ((int, b"I"), (str, b"S"), (bytes, b"B")):
        if isinstance(value, kind):
            return letter + text(str(value) if kind is int else value)
    return b"H" + sha256(content(value)).digest()


def listed(letter: bytes, parts: list[bytes]) -> bytes:
    return letter + number(len(parts)) + b"".join(parts)


def content(value) -> bytes:
    if isinstance(value, (list, tuple)):
        return listed(b"l" if isinstance(value, list) else b"t", [encode(item) for item in value])
    if isinstance(value, dict):
        return listed(b"d", sorted(encode(key) + encode(each) for key, each in value.items()))
    if isinstance(value, torch.Tensor):
        sizes = listed(b"", [number(size) for size in value.shape])
        grad = b"T" if value.requires_grad else b"F"
        return b"v" + text(str(value.dtype)[6:]) + sizes + sha256(raw(value)).digest() + grad + b"0"
    if not isinstance(value, Made):
        raise NotImplementedError(f"how to encode {type(value)}")
    call = encode(type(value)) + encode(value.args) + b"0"
    items = listed(b"l", [encode(item) for item in value.items])
    pairs = listed(b"", [encode(key) + encode(each) for key, each in value.pairs])
    return b"o" + call + items + pairs + (b"1" + encode(value.state[0]) if value.state else b"0")


def digest(tensors: dict[str, torch.Tensor], objects: dict) -> str:
    rows = []
    for name, tensor in sorted(tensors.items()):
        sizes = listed(b"", [number(size) for size in tensor.shape])
        dtype = text(str(tensor.dtype)[6:])
        rows.append(text("") + text(name) + dtype + sizes + sha256(raw(tensor)).digest())
    others = [text("") + text(n) + sha256(encode(v)).digest() for n, v in sorted(objects.items())]
    return sha256(listed(b"", rows) + listed(b"", others)).hexdigest()

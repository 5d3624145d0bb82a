"""Legal pickles of state dicts with opcodes inserted, removed, repeated, swapped or replaced.

Most of them are no longer a pickle; what PyTorch's unpicklers still read must be read as they do.
"""

from __future__ import annotations

import collections
import io
import pickletools
import random
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from checks import check_hash, look_at
from oracles import TooLarge, contents, read_torch_save
from plain_conversions import through_torch_dist, to_torch
from session import Session

NUMBERS = (0, 1, 2, 3, 4, 5, 6, 8, 23, 24, 25, 96, -1, -2, 2**31 - 1, -(2**31))
MEMO_SLOTS = 40
FRAME = b"\x95"  # states a length, which changes; frames may be absent


@dataclass(frozen=True)
class Archive:
    """A torch.save file, taken apart: the pickle by opcodes, and the other members."""

    opcodes: tuple[bytes, ...]
    members: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, value: object, protocol: int) -> Archive:
        saved = io.BytesIO()
        torch.save(value, saved, pickle_protocol=protocol)
        with zipfile.ZipFile(saved) as file:
            pickle_name = next(name for name in file.namelist() if name.endswith("/data.pkl"))
            folder = pickle_name.removesuffix("data.pkl")
            members = [
                (name.removeprefix(folder), file.read(name))
                for name in file.namelist()
                if name.startswith(folder + "data/")
            ]
            opcodes = opcodes_of(file.read(pickle_name))
            unframed = [opcode for opcode in opcodes if opcode[:1] != FRAME]
            return cls(tuple(unframed), tuple(members))

    def write(self, path: Path, opcodes: Iterable[bytes]) -> None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", b"".join(opcodes))
            file.writestr("archive/byteorder", "little")
            for name, data in self.members:
                file.writestr("archive/" + name, data)
            file.writestr("archive/version", "3\n")


def opcodes_of(pickled: bytes) -> list[bytes]:
    starts = [position for _, _, position in pickletools.genops(pickled)]
    ends = [*starts[1:], len(pickled)]
    return [pickled[start:end] for start, end in zip(starts, ends, strict=True)]


def saved_values() -> list[object]:
    base = torch.arange(24.0)
    marked = torch.ones(2)
    marked.partition_dim = 1
    ordered = collections.OrderedDict(a=base.view(4, 6).t(), z={1: base[::3]})
    ordered._metadata = {"v": 1}
    return [
        {
            "w": base[:6].view(2, 3),
            "v": base[4:9],
            "n": [1, 2.5, "s", None, (True, b"x")],
            "o": ordered,
        },
        collections.OrderedDict(
            [
                ("l.weight", torch.nn.Parameter(torch.ones(2, 2))),
                ("l.bias", torch.zeros(2, dtype=torch.bfloat16)),
                ("f8", torch.ones(4).to(torch.float8_e4m3fn)),
                ("i", torch.arange(5)),
                ("m", marked),
            ]
        ),
        {
            "state": {
                0: {"exp_avg": base[:4].clone(), "step": torch.tensor(3.0)},
                1: {"exp_avg": base[4:8].clone(), "step": torch.tensor(3.0)},
            },
            "param_groups": [{"lr": 0.1, "params": [0, 1]}],
            "counts": collections.defaultdict(list, a=[base[:2].clone()]),
            "counted": collections.Counter("aab"),
            "ordered": collections.OrderedDict(),
            "empty": {},
        },
    ]


GLOBALS = (
    "torch Size", "collections OrderedDict", "collections defaultdict", "collections Counter",
    "torch._utils _rebuild_parameter", "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3", "torch FloatStorage", "torch DoubleStorage",
    "torch IntStorage", "torch BoolStorage", "torch.storage UntypedStorage", "torch float64",
    "torch int32", "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_meta_tensor_no_storage", "torch._tensor _rebuild_from_type_v2",
    "torch Tensor", "torch.nn.parameter Parameter", "builtins set",
)  # fmt: skip


def global_named(name: str) -> bytes:
    return "c{}\n{}\n".format(*name.split()).encode()


def insertable() -> list[bytes]:
    """Opcodes that can stand anywhere: pushes, pops, marks, builders, memo, names."""
    single = [bytes([code]) for code in b"}])(N\x88\x89012\x85\x86\x87ldtsuaeRb\x81Q"]
    small = [b"K" + bytes([number]) for number in (0, 1, 2, 7)]
    longs = [b"J" + struct.pack("<i", number) for number in (-1, 2**31 - 1)]
    longs += [
        b"\x8a\x08" + (2**63 - 1).to_bytes(8, "little"),
        b"\x8a\x08" + (-(2**63)).to_bytes(8, "little", signed=True),
        b"\x8a\x09" + (2**64).to_bytes(9, "little"),
    ]
    texts = [b"X" + struct.pack("<I", len(text)) + text for text in (b"w", b"0", b"")]
    floats = [b"G" + struct.pack(">d", 1.0)]
    names = [global_named(name) for name in GLOBALS]
    memo = [code + bytes([slot]) for code in (b"h", b"q") for slot in range(12)]
    return [*single, *small, *longs, *texts, *floats, *names, *memo]


INSERTABLE = insertable()
ARCHIVES = [Archive.of(value, protocol) for value in saved_values() for protocol in (2, 4)]


def mutated(choice: random.Random, opcodes: list[bytes]) -> tuple[list[bytes], str]:
    done = []
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        change = choice.choice(CHANGES)
        at = choice.randrange(1, len(opcodes) - 1)
        change(choice, opcodes, at)
        done.append(f"{change.__name__} at {at}")
        if len(opcodes) < 4:
            break
    return opcodes, ", ".join(done)


def insert(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    opcodes.insert(at, choice.choice(INSERTABLE))


def remove(_: random.Random, opcodes: list[bytes], at: int) -> None:
    del opcodes[at]


def repeat(_: random.Random, opcodes: list[bytes], at: int) -> None:
    opcodes.insert(at, opcodes[at])


def swap_with_next(_: random.Random, opcodes: list[bytes], at: int) -> None:
    after = min(at + 1, len(opcodes) - 2)
    opcodes[at], opcodes[after] = opcodes[after], opcodes[at]


def replace(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    opcodes[at] = choice.choice(INSERTABLE)


def replace_by_another(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    opcodes[at] = choice.choice(opcodes[1:-1])


def change_number(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """The next integer, or the next reference to the memo."""
    for place in range(at, len(opcodes) - 1):
        if opcodes[place][:1] in b"KMJ":
            opcodes[place] = b"J" + struct.pack("<i", choice.choice(NUMBERS))
            return
        if opcodes[place][:1] in b"hq":
            opcodes[place] = opcodes[place][:1] + bytes([choice.randrange(MEMO_SLOTS)])
            return


def repeat_some(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """What builds an argument, a pair or a whole tensor, once more."""
    until = min(len(opcodes) - 1, at + choice.randint(1, 12))
    opcodes[at:at] = opcodes[at:until]


def give_arguments(choice: random.Random, opcodes: list[bytes], _: int) -> None:
    """A mapping gets its items, or more items, as an argument: OrderedDict([["zz", value]])."""
    calls = [place for place in range(len(opcodes) - 3) if makes_a_mapping(opcodes, place)]
    if calls:
        place = choice.choice(calls)
        tuple_of = b"\x85" if opcodes[place] == b")" else b"\x86"
        opcodes[place : place + 1] = [*items(choice), tuple_of]


def makes_a_mapping(opcodes: list[bytes], place: int) -> bool:
    """Whether this opcode ends the arguments, none or one, of a call that is no tensor's hooks."""
    if opcodes[place] not in (b")", b"\x85") or REDUCE not in opcodes[place + 1 : place + 3]:
        return False
    after = [opcode for opcode in opcodes[place + 2 : place + 5] if opcode[:1] not in b"Rqr\x94"]
    return bool(after) and after[0] != b"t"


def items(choice: random.Random) -> list[bytes]:
    """[["zz", value]], {"zz": value} or []"""
    pair = [b"]", b"(", text("zz"), some_value(choice), b"e"]
    as_list = [b"]", b"(", *pair, b"e"]
    as_dict = [b"}", text("zz"), some_value(choice), b"s"]
    return choice.choice((as_list, as_list, as_dict, [b"]"]))


def some_value(choice: random.Random) -> bytes:
    """A number, or what the memo holds: often a tensor."""
    return choice.choice((b"K\x05", b"h" + bytes([choice.randrange(MEMO_SLOTS)])))


def text(content: str) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content.encode()


def after_a_call(opcodes: list[bytes], at: int) -> int:
    calls = [i + 1 for i, opcode in enumerate(opcodes[:-1]) if opcode == REDUCE]
    return min(calls, key=lambda call: abs(call - at))


def set_item(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """In what a call has returned, whatever that is."""
    place = after_a_call(opcodes, at)
    opcodes[place:place] = [text("zz"), some_value(choice), b"s"]


def build(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """A state for what a call has returned."""
    place = after_a_call(opcodes, at)
    opcodes[place:place] = [b"}", text("zz"), some_value(choice), b"s", b"b"]


def call_otherwise(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """NEWOBJ in place of REDUCE, or NEWOBJ_EX with no keyword arguments."""
    place = after_a_call(opcodes, at) - 1
    opcodes[place : place + 1] = choice.choice(([b"\x81"], [b"}", b"\x92"]))


def other_name(choice: random.Random, opcodes: list[bytes], at: int) -> None:
    """Another function, class or storage type."""
    names = [i for i, opcode in enumerate(opcodes) if opcode[:1] == b"c"]
    if names:
        place = min(names, key=lambda name: abs(name - at))
        opcodes[place] = global_named(choice.choice(GLOBALS))


REDUCE = b"R"
CHANGES = (
    insert, insert, remove, repeat, swap_with_next, replace, replace, change_number, change_number,
    replace_by_another, repeat_some, give_arguments, give_arguments, set_item, build,
    call_otherwise, other_name,
)  # fmt: skip


def run(session: Session, choice: random.Random) -> None:
    archive = choice.choice(ARCHIVES)
    opcodes, session.case = mutated(choice, list(archive.opcodes))
    archive.write(session.source, opcodes)
    look_at(session, choice)
    try:
        source = read_torch_save(session.source)
        expected = contents(source)
    except TooLarge:
        return
    except Exception as problem:
        session.ended.append(f"torch fails: {type(problem).__name__}")
        convert_what_torch_refuses(session, problem)
        return
    check_hash(session, expected)
    verified = session.run("ckpt-inspect", "verify", session.source).code
    through_torch_dist(session, source, verified)
    to_torch(session, source, verified)


def convert_what_torch_refuses(session: Session, problem: Exception) -> None:
    """What torch.load would have to call or build may be carried as it is, and arguments that do
    not reach a tensor are not looked at. Then PyTorch reads the result, or refuses it, too; the
    campaign counts both."""
    made = session.convert("ckpt-convert", session.source, "new.pt", "--to", "torch")
    if made is None:
        return
    try:
        read_torch_save(made.path)
        session.ended.append(f"only the result is read: {type(problem).__name__}: {problem}"[:90])
    except Exception:
        session.ended.append("neither source nor result is read")

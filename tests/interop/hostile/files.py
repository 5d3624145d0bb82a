"""S1 to S5, F1, F4 and R1: safetensors, what is no file, and names on a terminal."""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from hostile.folders import plain
from hostile.row import CORRUPT, OK, UNSUPPORTED, Row, file_of, saved

NAME = "model.safetensors"
IO_FAILURE = 5


def container(header: object, data: bytes = bytes(8)) -> bytes:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + data


def entry(dtype: object, shape: object, *offsets: object) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


GOOD = entry("F32", [2], 0, 8)
TWICE = b'{"a":%b,"a":%b}' % ((json.dumps(GOOD).encode(),) * 2)
DEEP = b'{"__metadata__":' + b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_001


class OneHash:
    """Texts that share std::hash as libstdc++ has it: MurmurHash2 of 64 bits with a known seed. It
    can be run backwards, so that two blocks of eight bytes lead from any state to any other."""

    MASK, FACTOR, SEED = 2**64 - 1, 0xC6A4A7935BD1E995, 0xC70F6907
    INVERSE = pow(FACTOR, -1, 2**64)
    SLOTS, CHOICES = 4, 20  # of 16 letters each

    def __init__(self):
        self.random = random.Random(5)

    def mixed(self, block, factor):
        block = block * factor & self.MASK
        return (block ^ block >> 47) * factor & self.MASK

    def step(self, state, block):
        return (state ^ self.mixed(block, self.FACTOR)) * self.FACTOR & self.MASK

    def bridge(self, state, end):
        """16 letters that lead from one state to another."""
        while True:
            first = bytes(self.random.choices(b"abcdefghijklmnop", k=8))
            between = self.step(state, int.from_bytes(first, "little"))
            second = self.mixed(between ^ end * self.INVERSE & self.MASK, self.INVERSE)
            text = first + second.to_bytes(8, "little")
            if all(0x23 <= byte < 0x7F and byte != 0x5C for byte in text):
                return text.decode()

    def texts(self):
        state = self.SEED ^ 16 * self.SLOTS * self.FACTOR & self.MASK
        slots = []
        for end in range(1, self.SLOTS + 1):
            slots.append([self.bridge(state, end) for _ in range(self.CHOICES)])
            state = end
        return map("".join, itertools.product(*slots))


def keys_of_one_hash(folder: Path) -> Path:
    header = {text: entry("F32", [0], 0, 0) for text in OneHash().texts()}
    (folder / NAME).write_bytes(container(header, b""))
    return folder / NAME


MANY = {f"tensor.{i}": {} for i in range(300_000)}


def safetensors_rows():
    for name, content, code, *says in (
        ("S1 a header of 2^63 bytes", struct.pack("<Q", 2**63) + b"{}", CORRUPT, "@"),
        ("S1 a header of more than 100 MB", struct.pack("<Q", 100_000_001) + b"{}", CORRUPT, "@"),
        ("S1 a header beyond the file", struct.pack("<Q", 99) + b"{}", CORRUPT, "@"),
        ("S1 a space in front", container(b" " + json.dumps({"a": GOOD}).encode()), CORRUPT, "@"),
        ("S2 a key twice", container(TWICE), CORRUPT, "a"),
        ("S2 a million objects deep", container(DEEP, b""), CORRUPT, NAME),
        ("S2 300,000 entries that say nothing", container(MANY, b""), CORRUPT, "'tensor."),
        ("S2 1e400", container(b'{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,8]}}'),
         CORRUPT, NAME),
        ("S2 a fraction", container({"a": entry("F32", [2.5], 0, 8)}), CORRUPT, NAME),
        ("S2 a negative number", container({"a": entry("F32", [-2], 0, 8)}), CORRUPT, NAME),
        ("S2 text that is no UTF-8", container(b'{"\xff":1}'), CORRUPT, NAME),
        ("S3 begin behind end", container({"a": entry("F32", [2], 8, 0)}), CORRUPT, "'a'"),
        ("S3 overlap", container({"a": GOOD, "b": GOOD}), CORRUPT, "'"),
        ("S3 a hole", container({"a": entry("F32", [1], 4, 8)}), CORRUPT, "'a'"),
        ("S3 bytes behind the last tensor", container({"a": GOOD}, bytes(9)), CORRUPT, "@"),
        ("S3 shape and length disagree", container({"a": entry("F32", [3], 0, 8)}), CORRUPT,
         "'a'"),
        ("S3 a product beyond 64 bits", container({"a": entry("F32", [2**62, 2**62], 0, 8)}),
         CORRUPT, "'a'"),
        ("S3 strides beyond 64 bits beside a 0",
         container({"a": entry("F32", [0, 2**32, 2**31], 0, 0)}, b""), CORRUPT, "'a'", "2^63 - 1"),
        ("S3 2^63 beside a 0", container({"a": entry("F32", [0, 2**63], 0, 0)}, b""), CORRUPT,
         "'a'", "2^63 - 1"),
        ("S4 an unknown type", container({"a": entry("F33", [2], 0, 8)}), UNSUPPORTED, "F33",
         "'a'"),
        ("S4 a type smaller than a byte", container({"a": entry("F4", [16], 0, 8)}), UNSUPPORTED,
         "F4", "'a'"),
    ):
        yield Row(name, file_of(content, NAME), code, (NAME, *says))
    yield Row("S2 160,000 keys of one hash", keys_of_one_hash, OK, ("digest",))


def indexed(**places: str):
    """Two files of one tensor each, and an index that says something else."""

    def make(folder: Path) -> Path:
        for name in "ab":
            save_file({name: torch.ones(2)}, folder / f"{name}.safetensors")
        weight_map = {"a": "a.safetensors", "b": "b.safetensors", **places}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / f"{NAME}.index.json").write_text(json.dumps(index))
        return folder

    return make


def both_in_two(folder: Path) -> Path:
    indexed()(folder)
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, folder / "b.safetensors")
    return folder


def index_rows():
    for name, make, code, *says in (
        ("S5 a file that is not there", indexed(x="c.safetensors"), CORRUPT, "c.safetensors",
         "is missing"),
        ("S5 a path", indexed(a="../a.safetensors"), CORRUPT, "plain file name"),
        ("S5 a tensor in the wrong file", indexed(a="b.safetensors"), CORRUPT, "'a'"),
        ("S5 a tensor in two files", both_in_two, CORRUPT, "'a'"),
    ):
        yield Row(name, make, code, says)


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "file.pt")
    return folder / "file.pt"


def loop(folder: Path) -> Path:
    (folder / "file.pt").symlink_to("file.pt")
    return folder / "file.pt"


def in_place_of(name: str, make, missing_ok: bool = False):
    def damage(folder: Path) -> Path:
        plain()(folder)
        (folder / name).unlink(missing_ok)
        make(folder / name)
        return folder

    return damage


def linked(folder: Path) -> Path:
    """As in the caches of Hugging Face."""
    plain()(folder)
    (folder / "__0_0.distcp").rename(folder.parent / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(folder.parent / "elsewhere")
    return folder


def linked_inside(folder: Path) -> Path:
    plain()(folder)
    (folder / "files").mkdir()
    (folder / "__0_0.distcp").rename(folder / "files/elsewhere")
    (folder / "__0_0.distcp").symlink_to("files/elsewhere")
    return folder


def tracker_elsewhere(folder: Path) -> Path:
    """Its first bytes are not shown."""
    (folder.parent / "secret").write_text("password")
    (folder / "latest_checkpointed_iteration.txt").symlink_to(folder.parent / "secret")
    return folder


def iteration_elsewhere(folder: Path) -> Path:
    (folder.parent / "elsewhere").mkdir()
    plain()(folder.parent / "elsewhere")
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    (folder / "iter_0000003").symlink_to(folder.parent / "elsewhere")
    return folder


def ranks_elsewhere(folder: Path) -> Path:
    (folder.parent / "elsewhere").mkdir()
    torch.save({"x": torch.ones(2)}, folder.parent / "elsewhere/model_optim_rng.pt")
    (folder / "mp_rank_00").symlink_to(folder.parent / "elsewhere")
    return folder


def safetensors_elsewhere(folder: Path) -> Path:
    save_file({"a": torch.ones(2)}, folder.parent / NAME)
    (folder / NAME).symlink_to(f"../{NAME}")
    return folder


def manifest_elsewhere(folder: Path) -> Path:
    made = in_place_of("metadata.json", lambda path: path.write_text(
        '{"sharded_backend": "torch_dist", "common_backend": "torch"}'), missing_ok=True)(folder)
    (folder.parent / "secret").write_text("password")
    (folder / "integrity.json").symlink_to(folder.parent / "secret")
    return made


LEADS_OUT = "the symbolic link points outside the checkpoint"


def link_rows():
    for name, make, *says in (
        ("F1 D3 a .distcp file that is a link out of the folder", linked, "__0_0.distcp"),
        ("F1 a tracker that is a link out of the root", tracker_elsewhere,
         "latest_checkpointed_iteration.txt"),
        ("F1 an iteration that is a link out of the root", iteration_elsewhere, "iter_0000003"),
        ("F1 a rank's folder that is a link out of the iteration", ranks_elsewhere, "mp_rank_00"),
        ("F1 a safetensors file that is a link out of the folder", safetensors_elsewhere, NAME),
    ):
        yield Row(name, make, CORRUPT, (LEADS_OUT, *says))
        if make is not tracker_elsewhere:
            yield Row(f"{name}, where links are followed", make, OK, ("digest of ",),
                      ("hash", "--follow-links"))
    yield Row("F1 a link that stays in the folder", linked_inside, OK, ("of 2 stored tensors",))
    yield Row("F1 a manifest that is a link out of the folder", manifest_elsewhere, CORRUPT,
              (LEADS_OUT, "integrity.json"), ("verify",))


def secret(folder: Path) -> Path:
    path = file_of(saved([]))(folder)
    path.chmod(0)
    return path


def file_rows():
    for name, make, code, *says in (
        ("F1 a FIFO", fifo, UNSUPPORTED, "file.pt"),
        ("F1 a loop of links", loop, IO_FAILURE, "file.pt"),
        ("F1 a device", lambda folder: Path("/dev/zero"), UNSUPPORTED, "/dev/zero"),
        ("F1 a FIFO as .distcp file", in_place_of("__0_0.distcp", os.mkfifo), IO_FAILURE,
         "__0_0.distcp"),
        ("F1 a folder as .metadata", in_place_of(".metadata", os.mkdir), IO_FAILURE, ".metadata"),
        ("F1 a device as .distcp file",
         in_place_of("__0_0.distcp", lambda path: path.symlink_to("/dev/zero")), CORRUPT,
         "__0_0.distcp"),
        ("F4 a name that is too long", lambda folder: folder / ("x" * 300), IO_FAILURE, "xxx"),
    ):
        yield Row(name, make, code, says)
    yield from link_rows()
    if os.geteuid() != 0:  # whom permissions do not stop
        yield Row("F4 a file that may not be read", secret, IO_FAILURE, ("file.pt",))


ESCAPES = "\x1b]0;title\a\x1b[2J\u202ereversed\u200b\r\n"


def name_rows():
    named = container({ESCAPES: GOOD})
    for command in ("ls", "hash", "tree", "verify"):
        yield Row(f"R1 control characters, {command}", file_of(named, NAME), OK, (), (command,))
    yield Row("R1 control characters in an error",
              file_of(container({ESCAPES: entry("F33", [2], 0, 8)}), NAME), UNSUPPORTED,
              ("\\x1b]0;title\\x07",))
    lone = saved({"\ud800": torch.ones(1)}, pickle_protocol=4)
    for command in ("ls", "hash"):
        yield Row(f"R1 half a surrogate pair, {command} --json", file_of(lone), OK, (),
                  (command, "--json"))


def rows():
    yield from safetensors_rows()
    yield from index_rows()
    yield from file_rows()
    yield from name_rows()

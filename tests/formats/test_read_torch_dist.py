#!/usr/bin/env python3
"""The reader written from docs/formats/torch_dist.md against `ckpt-inspect hash`: every set of
tests/golden, of ../shared/fixtures where that is, and resharded ones; and two damaged copies.

    python3 tests/formats/test_read_torch_dist.py build/bin
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

from read_torch_dist import Bad, Inert, TorchDist, Unpickler, View

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests/golden"
FIXTURES = Path(os.environ.get("SHARDWISE_SHARED", REPOSITORY.parent / "shared")) / "fixtures"
PACKED = ("layer_wise_layouts", "trainers", "megatron_fsdp",
          "huggingface/adapters", "huggingface/logits", "huggingface/sets")  # fmt: skip
RESHARDED = {  # what Shardwise writes, at other sizes
    "lw_muon_bf16_torch_dist_dp2/ckpt": ("--dp", "3"),
    "do_adam_bf16_torch_dist_fully_reshardable_dp2/ckpt": ("--tp", "2"),
    "do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt": ("--tp", "2", "--pp", "2"),
}
ONE = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003"
BIN = Path("build/bin")


def run(program, *arguments, code=0):
    done = subprocess.run(
        [BIN / program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (program, arguments, done.returncode, done.stderr)
    return done.stdout


def folders(root):
    return sorted(path.parent for path in root.rglob(".metadata"))


def text_of(step):
    """A key as Shardwise prints it: of DistributedOptimizer's param_state a tuple of dtypes."""
    if isinstance(step, tuple):
        step = f"({', '.join(f'{part.__module__}.{part.__name__}' for part in step)})"
    return str(step).replace("~", "~0").replace("/", "~1")


def tensors_in(value, place=""):
    """Tensors of a value tree, by the pointers that Shardwise prints."""
    if isinstance(value, View):
        yield place, value
    steps = ()
    if isinstance(value, dict):
        steps = value.items()
    elif isinstance(value, (list, tuple)):
        steps = enumerate(value)
    elif isinstance(value, Inert) and isinstance(value.state, dict):
        steps = ((f"@{name}", inner) for name, inner in value.state.items())
    for step, inner in steps:
        yield from tensors_in(inner, f"{place}/{text_of(step)}")


def row(key, dtype, shape, data):
    return key, dtype, list(shape), hashlib.sha256(data).hexdigest()


def read(folder):
    """Everything in a set: (tensors of the store, objects, tensors in these and in common.pt)."""
    store = TorchDist(folder)
    own = [row(key, *tensor[:2], store.read(key)) for key, tensor in store.tensors.items()]
    inner = [
        row(f"{key}:{place}", *found)
        for key in store.objects
        for place, found in tensors_in(store.load(key))
    ]
    if (folder / "common.pt").exists():
        assert store.metadata_json()["sharded_backend"] == "torch_dist"
        inner += [
            row(f"common.pt:{place}", *found) for place, found in tensors_in(store.common())
        ]
    return sorted(own), sorted(store.objects), sorted(inner)


def told(folder):
    """The same of `ckpt-inspect hash`, which shares no line with the reader."""

    def rows(tensors, front=""):
        return [(front + t["key"], t["dtype"], t["shape"], t["sha256"]) for t in tensors]

    answer = json.loads(run("ckpt-inspect", "hash", "--json", folder))
    own = [t for t in answer["tensors"] if "file" not in t]
    inner = rows((t for t in answer["tensors"] if "file" in t), "common.pt:")
    for item in answer["objects"]:
        inner += rows(item["tensors"], f"{item.get('file', item['key'])}:")
    objects = [item["key"] for item in answer["objects"] if "file" not in item]
    return sorted(rows(own)), sorted(objects), sorted(inner)


class Pickler(pickle._Pickler):
    """Writes what Unpickler made: a class that is not there by its name alone."""

    def save_global(self, obj, name=None):
        self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__name__}\n".encode())
        self.memoize(obj)

    def reducer_override(self, obj):
        if obj is tuple or not isinstance(obj, Inert):
            return NotImplemented
        return type(obj), obj.args, obj.state


def metadata(folder):
    return Unpickler(io.BytesIO((folder / ".metadata").read_bytes())).load()


def write_metadata(path, root):
    with open(path, "wb") as file:
        Pickler(file, 4).dump(root)


def forget(root, unwanted):
    """Takes places, and the chunks that lie there, out of a .metadata."""
    places = root.state["storage_data"]
    for index in [index for index, place in places.items() if unwanted(index.state, place.state)]:
        del places[index]
        key, offset = index.state["fqn"], index.state.get("offset")
        entry = root.state["state_dict_metadata"][key]
        chunks = (entry.state or {}).get("chunks", [])
        chunks[:] = [chunk for chunk in chunks if chunk.state["offsets"] != offset]
        if not chunks:
            del root.state["state_dict_metadata"][key]


class ReadTorchDist(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)

    def compare(self, found):
        for folder in found:
            with self.subTest(folder=folder):
                ours, theirs = read(folder), told(folder)
                self.assertTrue(ours[0])
                for mine, other in zip(ours, theirs):
                    self.assertEqual(mine, other)

    def copy(self):
        return Path(shutil.copytree(ONE, self.scratch / "copy", copy_function=shutil.copyfile))

    def test_reads_the_golden_sets(self):
        for name in PACKED:
            with tarfile.open(GOLDEN / f"{name}.tar.xz") as packed:
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                packed.extractall(self.scratch / name, **safe)
        found = folders(GOLDEN) + folders(self.scratch)
        self.assertGreaterEqual(len(found), 20)
        self.compare(found)
        print(f"{len(found)} golden sets", file=sys.stderr)

    @unittest.skipUnless(FIXTURES.is_dir(), "no ../shared/fixtures")
    def test_reads_the_fixtures(self):
        found = folders(FIXTURES)
        found = [folder for folder in found if "zstd" not in str(folder)]  # refused, see below
        self.compare(found)
        print(f"{len(found)} sets of ../shared/fixtures", file=sys.stderr)

    def test_reads_what_shardwise_writes(self):
        for number, (name, options) in enumerate(RESHARDED.items()):
            run("reshard", GOLDEN / name, self.scratch / str(number), *options)
        found = folders(self.scratch)
        self.assertEqual(len(found), len(RESHARDED))
        self.compare(found)

    def test_ranks_that_saved_alone(self):
        folder = self.copy()
        for rank in range(2):
            root = metadata(ONE)
            forget(root, lambda _, place, rank=rank: f"__{rank}_" not in place["relative_path"])
            write_metadata(folder / f"__{rank}.metadata", root)
        (folder / ".metadata").unlink()
        self.compare([folder])
        self.assertEqual(read(folder), read(ONE))

    def test_refuses_what_is_compressed(self):
        folder, root = self.copy(), metadata(ONE)
        for place in root.state["storage_data"].values():
            place.state["transform_descriptors"] = ["stream.zstd/1"]
        write_metadata(folder / ".metadata", root)
        with self.assertRaisesRegex(Bad, "stream.zstd/1"):
            read(folder)

    def test_runs_nothing(self):
        value = Unpickler(io.BytesIO(b"cos\n_exit\n(I1\ntR.")).load()
        self.assertEqual((type(value).__name__, value.args), ("_exit", (1,)))

    def test_finds_a_flipped_byte(self):
        folder, key = self.copy(), "decoder.layers.mlp.linear_fc1.weight"
        store = TorchDist(folder)
        place = store.tensors[key].chunks[0].place.state
        path = folder / place["relative_path"]
        whole = bytearray(path.read_bytes())
        whole[whole.index(store.read(key)[:16], place["offset"])] ^= 1
        path.write_bytes(whole)
        with self.assertRaisesRegex(Bad, f"{key}: .*CRC-32.*data/0"):
            store.read(key)
        self.assertIn(key, run("ckpt-inspect", "verify", folder, code=1))

    def test_names_a_hole(self):
        folder, root = self.copy(), metadata(ONE)
        entries = root.state["state_dict_metadata"].items()
        key = next(key for key, entry in entries if len((entry.state or {}).get("chunks", ())) > 1)
        offset = root.state["state_dict_metadata"][key].state["chunks"][1].state["offsets"]
        forget(root, lambda index, _: (index["fqn"], index.get("offset")) == (key, offset))
        write_metadata(folder / ".metadata", root)
        store = TorchDist(folder)
        with self.assertRaisesRegex(Bad, f"{key}: no chunk holds element [1-9]"):
            store.read(key)
        self.assertIn(key, run("ckpt-inspect", "verify", folder, code=1))


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1)).resolve()
    unittest.main()

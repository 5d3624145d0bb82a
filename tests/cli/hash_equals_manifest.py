#!/usr/bin/env python3
"""`ckpt-inspect hash --json` lists what the fixtures' manifests list: every tensor, nothing else.

usage: hash_equals_manifest.py CKPT_INSPECT FOLDER...

Each FOLDER holds fixtures with a manifest.json that PyTorch and Megatron-Core made; one that is
missing is passed over.
"""
import collections
import fnmatch
import json
import pathlib
import subprocess
import sys

FOLDERS = ("lw_*", "head_lw_*", "do_adam_*", "adam_*", "muon_chained_*", "dcp_w2", "dcp_w2_zstd",
           "dcp_w2_safetensors_fmt", "dcp_w2_multifile", "dcp_w2_threads2")
SINGLE_FILES = {"torch_save_variety": "*.pt", "safetensors_single": "*.safetensors",
                "safetensors_sharded": "*.safetensors"}


def identity(tensor, file=""):
    return (file, tensor["key"], tensor["dtype"], tuple(tensor["shape"]), tensor["sha256"])


def hash_of(program, path):
    result = subprocess.run([program, "hash", "--json", path], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"hash {path}: exit code {result.returncode}: {result.stdout}")
    return json.loads(result.stdout)


def listed(hashes):
    tensors = collections.Counter(identity(t, t.get("file", "")) for t in hashes["tensors"])
    objects = {
        (o.get("file", ""), o["key"]): collections.Counter(map(identity, o["tensors"]))
        for o in hashes["objects"]
    }
    return tensors, objects


def expected_of_folder(manifest):
    """Of the manifest's names those of the checkpoint, relative to the folder that is opened."""
    tensors = collections.Counter()
    names = [name for name in manifest["tensors"] if name.startswith("ckpt/")]
    folder = min((name for name in names if name.endswith("/")), default=None)
    if folder is None:  # a `torch` checkpoint: files alone
        folder = "/".join(names[0].split("/")[:2]) + "/"
    for name in names:
        for tensor in manifest["tensors"][name]:
            tensors[identity(tensor, name[len(folder):])] += 1
    objects = {o["key"]: collections.Counter(map(identity, o.get("tensors", [])))
               for o in manifest.get("objects", [])}
    return tensors, objects


def differences(expected, actual):
    return [f"  missing {item}" for item in (expected - actual)] + [
        f"  surplus {item}" for item in (actual - expected)]


def check_folder(program, fixture):
    manifest = json.loads((fixture / "manifest.json").read_text())
    expected, expected_objects = expected_of_folder(manifest)
    tensors, objects = listed(hash_of(program, fixture / "ckpt"))
    found = differences(expected, tensors)
    stored = {key: of_object for (file, key), of_object in objects.items() if not file}
    if set(stored) != set(expected_objects):
        found.append(f"  objects {sorted(stored)} instead of {sorted(expected_objects)}")
    for key, of_object in expected_objects.items():
        found += differences(of_object, stored.get(key, collections.Counter()))
    return found, sum(expected.values()) + sum(sum(o.values()) for o in expected_objects.values())


def check_file(program, path, manifest):
    expected = collections.Counter(map(identity, manifest["tensors"][path.name]))
    tensors, _ = listed(hash_of(program, path))
    return differences(expected, tensors), sum(expected.values())


def check_fixtures(program, fixtures):
    results = {}
    for fixture in sorted(fixtures.iterdir()):
        is_named = any(fnmatch.fnmatch(fixture.name, pattern) for pattern in FOLDERS)
        if is_named and (fixture / "manifest.json").exists():
            results[fixture.name] = check_folder(program, fixture)
    for name, pattern in SINGLE_FILES.items():
        if not (fixtures / name).is_dir():
            continue
        manifest = json.loads((fixtures / name / "manifest.json").read_text())
        for path in sorted((fixtures / name).glob(pattern)):
            results[f"{name}/{path.name}"] = check_file(program, path, manifest)
    return results


def main():
    program, *folders = sys.argv[1:]
    results = {}
    for folder in map(pathlib.Path, folders):
        if folder.is_dir():
            results.update(check_fixtures(program, folder))
    for name, (found, count) in results.items():
        print(f"{name}: {count} tensors, {'equal' if not found else 'DIFFERENT'}")
        print("\n".join(found[:20]), end="\n" if found else "")
    return 1 if any(found for found, _ in results.values()) or not results else 0


if __name__ == "__main__":
    sys.exit(main())

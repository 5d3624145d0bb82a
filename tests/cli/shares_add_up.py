#!/usr/bin/env python3
"""What the processes of a share print of `verify` and `hash` is, together, what one process prints.

usage: shares_add_up.py CKPT_INSPECT GOLDEN [FIXTURES]
"""
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

SIZES = (1, 2, 3, 8)
SAMPLES = ("lw_muon_bf16_torch_dp2/ckpt", "lw_muon_bf16_torch_dist_dp2/ckpt",
           "torch_save_zip/zip.pt")
FIXTURES = ("lw_muon_bf16_torch_dist_dp4/ckpt", "head_lw_muon_bf16_torch_dist_dp2/ckpt",
            "dcp_w2_zstd/ckpt", "safetensors_sharded", "torch_save_variety/legacy.pt")
failures = []


def expect(is_true, what):
    if not is_true:
        failures.append(what)


class Inspect:
    def __init__(self, program):
        self.program = program

    def run(self, *words):
        result = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        return result.returncode, result.stdout

    def shares(self, size, *words):
        return [self.run(*words, "--rank", rank, "--world-size", size) for rank in range(size)]


def added_up(reports):
    """Lists joined and sorted, numbers added, also of a file's pieces."""
    lists, counts, files = collections.defaultdict(list), collections.Counter(), set()
    for report in reports:
        for name in ("findings", "not_checked"):
            lists[name] += [json.dumps(entry, sort_keys=True) for entry in report[name]]
        for file in report["files"]:
            counts.update({(file["path"], label): count for label, count in file["labels"].items()})
            counts[file["path"], "bytes"] += file["bytes"]
            files.add((file["path"], file["in_manifest"]))
        counts.update({f"{part} {name}": count for part in ("bytes", "checked")
                       for name, count in report[part].items()})
    return {name: sorted(entries) for name, entries in lists.items()}, counts, files


def check_verify(inspect, path, *options):
    code, text = inspect.run("verify", path, "--json", *options)
    for size in SIZES:
        shares = inspect.shares(size, "verify", path, "--json", *options)
        reports = [json.loads(report) for _, report in shares]
        what = f"verify {path} {options} in {size}"
        for file in (file for report in reports if report["sound"] for file in report["files"]):
            pieces = sum(piece["count_bytes"] for piece in file["pieces"])
            expect(sum(file["labels"].values()) == file["bytes"] == pieces,
                   f"{what}: bytes of {file['path']}")
        expect(added_up(reports) == added_up([json.loads(text)]), f"{what}: another report")
        expect(all(own == (0 if report["sound"] else 1)
                   for (own, _), report in zip(shares, reports)), f"{what}: exit codes")
        expect(max(own for own, _ in shares) == code, f"{what}: no share has the damage")


def check_that_files_are_cut(inspect, path):
    """Small pieces: the processes have parts of one file, which together are the file."""
    reports = [json.loads(text)["files"]
               for _, text in inspect.shares(2, "verify", path, "--json", "--piece-size", "4K")]
    (own,), (other,) = reports  # of one file
    pieces = sorted((piece["offset_bytes"], piece["count_bytes"])
                    for piece in own["pieces"] + other["pieces"])
    ends = [offset + count for offset, count in pieces]
    expect([offset for offset, _ in pieces] == [0, *ends[:-1]] and ends[-1] == path.stat().st_size,
           f"{path} in pieces: {pieces}")
    expect(all(count >= 4096 for _, count in pieces), f"{path}: shorter pieces: {pieces}")


def check_hash(inspect, path, folder, *options):
    _, whole = inspect.run("hash", path, *options)
    rows = sorted(line for line in whole.splitlines() if "  digest of " not in line)
    for size in SIZES[1:]:
        what = f"hash {path} {options} in {size}"
        outputs = []
        for rank, (_, text) in enumerate(inspect.shares(size, "hash", path, *options)):
            outputs.append(folder / f"hashes{rank}")
            outputs[-1].write_text(text)
        printed = [line for output in outputs for line in output.read_text().splitlines()]
        expect(sorted(printed) == rows, f"{what}: other rows")
        _, finished = inspect.run("hash", path, *options, "--finish", *outputs)
        expect(finished == whole, f"{what}: put together, another output")


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def check_damage(inspect, golden, folder):
    """One flipped bit: the owner of the file, or of the piece, finds it, and nobody else."""
    copy = folder / "damaged"
    shutil.copytree(golden / SAMPLES[0], copy)
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    damaged = copy / "iter_0000003" / "mp_rank_00" / "layer_wise_optimizer_1.pt"
    flip(damaged, 20000)  # a momentum
    check_verify(inspect, copy)
    for size in SIZES:
        found = []
        for code, report in inspect.shares(size, "verify", copy, "--json"):
            own = [file["path"] for file in json.loads(report)["files"]]
            found.append((code, any(path.endswith(damaged.name) for path in own)))
        expect(sorted(found) == [(0, False)] * (size - 1) + [(1, True)],
               f"damage in {damaged.name}, {size} processes: {found}")
        codes = [code for code, _ in inspect.shares(size, "verify", copy, "--piece-size", "4K")]
        expect(sorted(codes) == [0] * (size - 1) + [1],
               f"damage in a piece of {damaged.name}, {size} processes: {codes}")


def main():
    inspect = Inspect(sys.argv[1])
    golden = pathlib.Path(sys.argv[2])
    fixtures = pathlib.Path(sys.argv[3])
    paths = [golden / sample for sample in SAMPLES]
    paths += [fixtures / name for name in FIXTURES if (fixtures / name).exists()]
    with tempfile.TemporaryDirectory(prefix="shardwise-shares-") as name:
        folder = pathlib.Path(name)
        for path in paths:
            check_verify(inspect, path)
            check_hash(inspect, path, folder)
        check_verify(inspect, paths[1], "--quick")
        check_verify(inspect, paths[1], "--require-checksums")
        for path in paths:
            check_verify(inspect, path, "--piece-size", "4K")
        check_that_files_are_cut(inspect, golden / SAMPLES[-1])
        check_hash(inspect, paths[0], folder, "--logical")
        check_damage(inspect, golden, folder)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

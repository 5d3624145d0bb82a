#!/usr/bin/env python3
"""The programs under limits of the process: file sizes, descriptors, memory.

usage: limits.py BIN

Every command runs under every limit of a sweep, denser where SHARDWISE_LONG_TESTS is set. It ends
with 0 or, in words, with 5; never by a signal. The destination is absent or whole, and nothing else
is left.
"""
import functools
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from kill_loop import GOLDEN, CASES, tree

NOT_DONE = 5
MIB = 1 << 20


class Sweep:
    """One limit, its values, and the words that its errors must have, one of them."""

    def __init__(self, name, limit, values, words):
        self.name, self.limit, self.words = name, limit, words
        self.values = list(values)


def sweeps(is_long):
    step = 1 if is_long else 10
    sizes = [*range(0, 4096, 1024), *range(4096, 400_000, 4096 * step)]
    yield Sweep("file size", resource.RLIMIT_FSIZE, sizes, ("File too large",))
    yield Sweep("descriptors", resource.RLIMIT_NOFILE, range(3, 24), ("Too many open files",))
    spaces = range(16 * MIB, 160 * MIB, MIB * step // 2)
    yield Sweep("address space", resource.RLIMIT_AS, spaces,
                ("out of memory", "Cannot allocate memory", "cannot start a thread"))


def commands(bin_folder, out):
    for case in CASES:
        yield case.command(bin_folder, out)
        yield case.command(bin_folder, out, "--verify", "-j", "4")
    source = GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt"
    yield [bin_folder / "ckpt-convert", source, out, "--to", "torch_dist", "--zstd", "1",
           "--integrity"]
    yield [bin_folder / "ckpt-inspect", "verify", source]
    yield [bin_folder / "ckpt-inspect", "hash", source, "-j", "4"]
    yield [bin_folder / "ckpt-inspect", "diff", source, CASES[0].source]


def run(command, limit, value):
    def restrict():
        resource.setrlimit(limit, (value, value))

    return subprocess.run(command, capture_output=True, check=False, preexec_fn=restrict, text=True)


@functools.cache
def starts(program, limit, value):
    """Whether the program can be loaded at all: what happens before is not ours."""
    return run([program, "--version"], limit, value).returncode == 0


def problem_of(outcome, sweep, left, whole):
    """What is wrong with how a command ended; nothing if all is well."""
    if outcome.returncode not in (0, NOT_DONE):
        return f"exit code {outcome.returncode}"
    if outcome.returncode == NOT_DONE and not any(word in outcome.stderr for word in sweep.words):
        return "does not say which limit"
    if left not in ({}, whole):
        return f"left over: {sorted(left)}"
    if outcome.returncode == 0 and left != whole:
        return "says that it is done"
    return None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    bin_folder = pathlib.Path(sys.argv[1]).resolve()
    counts = {}
    with tempfile.TemporaryDirectory(prefix="shardwise-limits-") as name:
        folder = pathlib.Path(name) / "work"
        folder.mkdir()
        for command in commands(bin_folder, folder / "out"):
            subprocess.run(command, check=False, capture_output=True)
            whole = tree(folder)
            subprocess.run(["rm", "-rf", folder / "out"], check=True)
            for sweep in sweeps(bool(os.environ.get("SHARDWISE_LONG_TESTS"))):
                sweep_codes = counts.setdefault(sweep.name, {0: 0, NOT_DONE: 0})
                for value in sweep.values:
                    if not starts(command[0], sweep.limit, value):
                        continue
                    outcome = run(command, sweep.limit, value)
                    problem = problem_of(outcome, sweep, tree(folder), whole)
                    if problem:
                        words = " ".join(str(word) for word in command)
                        sys.exit(f"{sweep.name} {value}: {words}: {problem}\n{outcome.stderr}")
                    sweep_codes[outcome.returncode] += 1
                    subprocess.run(["rm", "-rf", folder / "out"], check=True)
    for name, codes in counts.items():
        print(f"{name}: {codes[0]} runs done, {codes[NOT_DONE]} refused, nothing left over")


if __name__ == "__main__":
    main()

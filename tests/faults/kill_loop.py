#!/usr/bin/env python3
"""Kills conversions at random moments and looks at what is left.

usage: kill_loop.py BIN [--rounds N] [--seed N]

Each round runs a conversion, kills it (SIGKILL; now and then SIGTERM or SIGXCPU) and checks: the
destination is absent, the old one, or to the byte what an undisturbed run writes; the source is
untouched; --resume, killed now and then itself, completes it and leaves nothing else. Every fourth
round runs several processes with --rank and --world-size and restarts those that were killed.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
LONG_ROUNDS = 500
SHORT_ROUNDS = 16


def tree(path):
    """Everything below a path: relative name -> bytes (None for a folder)."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {
        entry.relative_to(path).as_posix(): entry.read_bytes() if entry.is_file() else None
        for entry in path.rglob("*")
    }


class Case:
    """One direction: a command but for its destination and options."""

    def __init__(self, name, program, source, *options):
        self.name, self.program, self.source, self.options = name, program, source, options

    def command(self, bin_folder, destination, *more):
        return [bin_folder / self.program, self.source, destination, *self.options, *more]


CASES = [
    Case("torch to torch_dist", "ckpt-convert", GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt",
         "--to", "torch_dist"),
    Case("torch_dist to torch", "ckpt-convert", GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt",
         "--to", "torch"),
    Case("reshard torch", "reshard", GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt", "--dp", "4"),
    Case("reshard torch_dist", "reshard", GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt",
         "--dp", "3"),
]


def large_file_case(folder):
    """A file of 24 MB that several processes write in pieces."""
    size, count = 1 << 20, 24
    header = json.dumps({f"w{i}": {"dtype": "U8", "shape": [size],
                                   "data_offsets": [i * size, (i + 1) * size]}
                         for i in range(count)}).encode()
    source = folder / "large.safetensors"
    content = random.Random(24).randbytes(size * count)
    source.write_bytes(len(header).to_bytes(8, "little") + header + content)
    return Case("one file in pieces", "ckpt-convert", source, "--to", "torch",
                "--piece-size", "1M")


class Loop:
    def __init__(self, bin_folder, seed):
        self.bin = pathlib.Path(bin_folder).resolve()
        self.random = random.Random(seed)
        self.seen = collections.Counter()
        self.expected, self.seconds, self.sources = {}, {}, {}
        self.cases = list(CASES)

    def run(self, rounds):
        with tempfile.TemporaryDirectory(prefix="shardwise-kill-") as folder:
            self.cases.append(large_file_case(pathlib.Path(folder)))
            for case in self.cases:
                self.measure(case, pathlib.Path(folder))
            for number in range(rounds):
                work = pathlib.Path(folder) / str(number)
                work.mkdir()
                case = self.random.choice(self.cases)
                try:
                    if number % 4 == 3:
                        self.several_processes(case, work / "out")
                    else:
                        self.one_process(case, work / "out")
                except AssertionError as problem:
                    sys.exit(f"round {number}, {case.name}: {problem}; left: {sorted(tree(work))}")
                subprocess.run(["rm", "-rf", work], check=True)

    def measure(self, case, folder):
        out = folder / case.name
        seconds = []
        for _ in range(5):
            began = time.monotonic()
            subprocess.run(case.command(self.bin, out, "-q", "--force"), check=True,
                           stdout=subprocess.DEVNULL)
            seconds.append(time.monotonic() - began)
        self.seconds[case.name] = min(seconds)
        self.expected[case.name] = tree(out)
        self.sources[case.name] = tree(case.source)

    def start(self, case, out, *more):
        return subprocess.Popen(case.command(self.bin, out, "-q", *more),
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill_later(self, process, case, with_signal):
        """Waits a random part of a whole run's time; the exit code."""
        try:
            process.wait(self.random.uniform(0, 1) * self.seconds[case.name])
            self.seen["ended before the signal"] += 1
        except subprocess.TimeoutExpired:
            process.send_signal(with_signal)
            self.seen[f"ended by {with_signal.name}"] += 1
        self.error_of(process)
        return process.returncode

    @staticmethod
    def error_of(process):
        """What it printed on stderr, after its end; nothing if it was asked before."""
        if process.stderr.closed:
            return ""
        with process.stderr:
            text = process.stderr.read().decode()
        process.wait()
        return text

    def check(self, case, out, old):
        """What the destination is: 'absent', 'old' or 'whole'."""
        assert tree(case.source) == self.sources[case.name], "the source has changed"
        if not os.path.lexists(out):
            assert old is None, "the old destination is gone"
            return "absent"
        now = tree(out)
        if now == self.expected[case.name]:
            return "whole"
        assert now == old, "the destination is neither the old nor the new one"
        return "old"

    def one_process(self, case, out):
        old, force = None, []
        if self.random.random() < 0.5:
            out.mkdir()
            (out / "old").write_bytes(b"old")
            old, force = tree(out), ["--force"]
        ends = self.random.random() < 0.25
        end = self.random.choice([signal.SIGTERM, signal.SIGXCPU]) if ends else signal.SIGKILL
        code = self.kill_later(self.start(case, out, *force), case, end)
        state = self.check(case, out, old)
        self.seen[f"then the destination was {state}"] += 1
        if ends and code == 128 + end:
            assert os.listdir(out.parent) == ([] if old is None else ["out"]), "a signal left work"
        for attempt in range(3):
            process = self.start(case, out, *force, "--resume")
            if attempt < 2 and self.random.random() < 0.5:
                code = self.kill_later(process, case, signal.SIGKILL)
                state = self.check(case, out, old)
                continue
            error = self.error_of(process)
            done = process.returncode == 0 or (state == "whole" and not force)
            assert done, f"--resume exits {process.returncode}: {error}"
            break
        self.check_end(case, out)

    def several_processes(self, case, out):
        size = self.random.choice([2, 3, 8])
        parts = {rank: ["--rank", str(rank), "--world-size", str(size)] for rank in range(size)}
        left = set(parts)
        while left and not out.exists():
            running = {rank: self.start(case, out, *parts[rank]) for rank in left}
            for rank, process in running.items():
                if self.random.random() < 0.3:
                    self.kill_later(process, case, signal.SIGKILL)
            for rank, process in running.items():
                error = self.error_of(process)
                if process.returncode == 0:
                    left.discard(rank)
                assert process.returncode in (0, -signal.SIGKILL) or out.exists(), error
        if not out.exists():  # who was to publish it was killed
            finish = self.start(case, out, "--finish")
            error = self.error_of(finish)
            assert finish.returncode == 0, error
            self.seen["published by --finish"] += 1
        subprocess.run(case.command(self.bin, out, "-q", "--clean"), check=True,
                       stdout=subprocess.DEVNULL)
        self.seen[f"of {size} processes"] += 1
        self.check_end(case, out)

    def check_end(self, case, out):
        assert self.check(case, out, None) == "whole", "not completed"
        left = sorted(os.listdir(out.parent))
        if left != ["out"]:  # it was killed between publishing and tidying up
            subprocess.run(case.command(self.bin, out, "-q", "--clean"), check=True,
                           stdout=subprocess.DEVNULL)
            left = sorted(os.listdir(out.parent))
        assert left == ["out"], f"left over: {left}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("bin")
    long = bool(os.environ.get("SHARDWISE_LONG_TESTS"))
    parser.add_argument("--rounds", type=int, default=LONG_ROUNDS if long else SHORT_ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    loop = Loop(arguments.bin, arguments.seed)
    loop.run(arguments.rounds)
    print(f"{arguments.rounds} rounds: every destination absent, old or whole, every run completed")
    for what, count in sorted(loop.seen.items()):
        print(f"  {count:5} {what}")


if __name__ == "__main__":
    main()

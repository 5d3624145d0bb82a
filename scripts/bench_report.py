#!/usr/bin/env python3
"""Times `ckpt-inspect report` beside `verify` of the same checkpoint, in turn.

usage: bench_report.py BIN CHECKPOINT... [--rounds N] [--cold]

Prints medians and ranges of seconds, CPU seconds per GB, the speed of report by
that of verify, and resident memory at the peak.
"""
import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench_timing import cool, size_of, warm


def timed(command):
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"{command} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def text(values):
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def measure(arguments, checkpoint, page):
    program = arguments.bin / "ckpt-inspect"
    commands = {
        "verify": [program, "verify", checkpoint, "-q", "--no-progress"],
        "report": [program, "report", checkpoint, "-o", page, "--force", "-q", "--no-progress"],
    }
    runs = {name: [] for name in commands}
    warm(checkpoint)
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            if arguments.cold:
                cool(checkpoint)
            runs[name].append(timed(command))
    gigabytes = size_of(checkpoint) / 1e9
    print(f"{checkpoint.name}, {gigabytes:.2f} GB, {'disk' if arguments.cold else 'page cache'}")
    for name, times in runs.items():
        cpu = statistics.median(run[1] for run in times) / gigabytes
        print(f"  {name}: {text([run[0] for run in times])}, {cpu:.2f} CPU-s per GB, "
              f"{max(run[2] for run in times) / 1024:.0f} MiB")
    ratios = [a[0] / b[0] for a, b in zip(runs["verify"], runs["report"])]
    of_cpu = [a[1] / b[1] for a, b in zip(runs["verify"], runs["report"])]
    print(f"  verify / report: {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
          f"{max(ratios):.2f}), of CPU seconds {statistics.median(of_cpu):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="with nothing in the page cache")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in arguments.checkpoints:
            measure(arguments, checkpoint, Path(folder) / "report.html")


if __name__ == "__main__":
    main()

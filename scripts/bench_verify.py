#!/usr/bin/env python3
"""How fast `ckpt-inspect verify` reads, beside a raw read of the same files.

usage: bench_verify.py CHECKPOINT... [--bin DIR] [--repeat N] [--settle SECONDS] [--warm]

The raw read is `dd` in pieces of 4 MiB, two at a time, as verify reads on two cores. Contestants
take turns, each after the same idle time; cold runs drop the page cache before (root).
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import time

from bench_timing import files_of

HALVES = 2


def raw_read(path):
    """Each file by two dd at once, a half each."""
    for file in files_of(pathlib.Path(path)):
        half = -(-file.stat().st_size // HALVES)
        readers = [
            subprocess.Popen(
                ["dd", f"if={file}", "of=/dev/null", "bs=4M", f"skip={i * half}", f"count={half}",
                 "iflag=skip_bytes,count_bytes"],
                stderr=subprocess.DEVNULL)
            for i in range(HALVES)
        ]
        for reader in readers:
            assert reader.wait() == 0, file


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def seconds_of(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--bin", default=pathlib.Path(__file__).parents[1] / "build/bin")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--settle", type=float, default=2.0)
    parser.add_argument("--warm", action="store_true", help="leave the page cache as it is")
    options = parser.parse_args()
    for checkpoint in options.checkpoints:
        size_bytes = sum(file.stat().st_size for file in files_of(pathlib.Path(checkpoint)))
        command = [str(pathlib.Path(options.bin) / "ckpt-inspect"), "verify", "-q", checkpoint]
        contestants = {
            "raw read": lambda: raw_read(checkpoint),
            "verify": lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        }
        times = {name: [] for name in contestants}
        for _ in range(options.repeat):
            for name, run in contestants.items():
                if not options.warm:
                    drop_caches()
                time.sleep(options.settle)
                times[name].append(seconds_of(run))
        print(f"{checkpoint}: {size_bytes / 1e9:.2f} GB, {'warm' if options.warm else 'cold'}")
        for name, own in times.items():
            median = statistics.median(own)
            print(f"  {name:9} median {median:.3f} s  fastest {min(own):.3f}  "
                  f"slowest {max(own):.3f}  {size_bytes / 1e9 / median:.2f} GB/s")
        ratios = [raw / own for raw, own in zip(times["raw read"], times["verify"])]
        print(f"  raw / verify: median {statistics.median(ratios):.2f}, "
              f"from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()

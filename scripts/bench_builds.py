"""Times the programs of two builds side by side, and prints how much more or less the second takes.

usage: bench_builds.py BEFORE AFTER [--work DIR] [--size 512m] [--repeat N] [--part NAME]...

BEFORE and AFTER are folders of programs (build/bin of two work trees). Each round runs both on the
same source, in the page cache, and starts with the other one than the round before; ratios are
taken round by round. Processor time is what the kernel accounts to the process: on a machine that
does other work, too, it is the steadier of the two. Needs PyTorch and Megatron-Core for the
sources, unless --work has them from an earlier run.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_timing import Contestant, interleave, median, read_results

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ("before", "after")


def commands(folder):
    """{part: (program, arguments, source, output)}"""
    dcp, model, output = folder / "dcp", folder / "model.pt", folder / "out"
    ranks, store = folder / "lw_torch_dp2", folder / "lw_torch_dist_dp2"
    return {
        "start": ("ckpt-inspect", ["--version"], model, None),
        "dcp-to-torch": ("ckpt-convert", [dcp, output, "--to", "torch"], dcp, output),
        "torch-to-dcp": ("ckpt-convert", [model, output, "--to", "torch_dist"], model, output),
        "torch-to-safetensors": ("ckpt-convert", [model, folder / "out.safetensors", "--to",
                                                  "safetensors"], model,
                                 folder / "out.safetensors"),
        "ranks-to-store": ("ckpt-convert", [ranks, output, "--to", "torch_dist"], ranks, output),
        "reshard-torch": ("reshard", [ranks, output, "--dp", "4"], ranks, output),
        "reshard-torch_dist": ("reshard", [store, output, "--dp", "4"], store, output),
        "verify-dcp": ("ckpt-inspect", ["verify", dcp], dcp, None),
        "verify-torch": ("ckpt-inspect", ["verify", ranks], ranks, None),
        "hash": ("ckpt-inspect", ["hash", dcp], dcp, None),
        "diff": ("ckpt-inspect", ["diff", ranks, store], ranks, None),
        "page": ("ckpt-inspect", [store], store, None),
        "ls": ("ckpt-inspect", ["ls", dcp], dcp, None),
    }


def ratio_text(group, field):
    ratios = [after[field] / before[field] for before, after in
              zip(group["before"], group["after"], strict=True) if before[field] > 0]
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def print_table(results):
    print("| | before | after | after / before | processor time | after / before | peak memory |\n"
          "|---|---|---|---|---|---|---|")
    for (title, _), group in read_results(results).items():
        before, after = group["before"], group["after"]
        memory = " to ".join(f"{max(run['peak_bytes'] for run in runs) / 1e6:.0f}"
                             for runs in (before, after))
        print(f"| {title} | {median(before):.3f} s | {median(after):.3f} s | "
              f"{ratio_text(group, 'seconds')} | {median(before, 'cpu_seconds'):.3f} to "
              f"{median(after, 'cpu_seconds'):.3f} s | {ratio_text(group, 'cpu_seconds')} | "
              f"{memory} MB |")


def make_sources(folder, size):
    if (folder / "lw_torch_dist_dp2").exists():
        return
    subprocess.run([sys.executable, ROOT / "scripts" / "bench_checkpoint.py", folder, "--size",
                    size], check=True, stdout=subprocess.DEVNULL)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--work", type=Path,
                        help="folder for the checkpoints, which are kept there; default: temporary")
    parser.add_argument("--size", default="512m", help="as bench_checkpoint.py has it")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each program")
    parser.add_argument("--settle", type=float, default=0.2, help="idle seconds before each run")
    parser.add_argument("--part", action="append", choices=commands(Path()), help="default: all")
    return parser.parse_args()


def main():
    options = parse_arguments()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        folder = (options.work or Path(temporary)) / options.size
        folder.mkdir(parents=True, exist_ok=True)
        make_sources(folder, options.size)
        options.results = Path(temporary) / "results"
        options.results.touch()
        for part, (program, arguments, source, output) in commands(folder).items():
            if options.part and part not in options.part:
                continue
            contestants = [Contestant(build, [getattr(options, build) / program, *arguments],
                                      source, output) for build in BUILDS]
            interleave(part, contestants, False, options)
        print_table(options.results)


if __name__ == "__main__":
    main()

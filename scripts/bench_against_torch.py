"""Times our programs side by side with PyTorch's and with raw copies, and prints tables.

Start-up: ckpt-inspect against `import torch`. Conversion of plain state dicts in both directions
against PyTorch's format_utils, and resharding of Megatron's layer-wise optimizer in both formats,
each beside copies of the same bytes: the yardstick (scripts/bench_raw_copy.py, or its twin in C++
where ../shared/bench is there) and cp followed by sync. verify beside a plain read by two threads,
hash beside one by one thread and openssl. All with the source in the page cache and without it.
Contestants are interleaved and start after the same idle time. CPU-seconds and peak memory are what
the kernel accounts to the process (ru_maxrss).

Parts may be run one by one: they append to the file of --results, and the tables are printed from
all that it holds.
"""
import argparse
import os
import statistics
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_timing import Contestant, interleave, print_table, read_results, run

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests" / "golden" / "lw_muon_bf16_torch_dp2" / "ckpt"
SHARED_SOURCE = ROOT.parent / "shared" / "bench" / "src" / "phys.cpp"
VERIFIED = ("dcp", "lw_torch_dp2", "lw_torch_dist_dp2")
PARTS = ("start", "to-torch", "to-dcp", "reshard-torch", "reshard-torch_dist",
         *(f"verify-{name}" for name in VERIFIED), "hash")
TORCH_CONVERSION = ("from torch.distributed.checkpoint.format_utils import {0}; "
                    "{0}({1!r}, {2!r})")
READ = ("import sys; block = bytearray(4 << 20)\n"
        "for name in sys.argv[1:]:\n"
        "    with open(name, 'rb', buffering=0) as file:\n"
        "        while file.readinto(block): pass")


def start_up(repeat, programs):
    ours = Contestant("ckpt-inspect", [programs / "ckpt-inspect", SAMPLE], SAMPLE, None)
    theirs = Contestant("python -c 'import torch'", [sys.executable, "-c", "import torch"],
                        SAMPLE, None)
    seconds = {ours.name: [], theirs.name: []}
    for round_number in range(repeat + 1):
        for contestant in (ours, theirs):
            taken = run(contestant)["seconds"]
            if round_number > 0:  # the first round fills the page cache
                seconds[contestant.name].append(taken)
    print("\n### Start-up\n\n| | median | fastest | slowest |\n|---|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {1e3 * statistics.median(taken):.1f} ms | {1e3 * min(taken):.1f} ms | "
              f"{1e3 * max(taken):.1f} ms |")
    ratios = [b / a for a, b in zip(*seconds.values())]
    print(f"\nRatio of neighbouring runs: median {statistics.median(ratios):.0f}, "
          f"from {min(ratios):.0f} to {max(ratios):.0f}.")


def compiles(source, binary):
    command = ["g++", "-O2", "-march=native", "-pthread", source, "-o", binary,
               "-lz", "-ldeflate", "-lisal"]  # which need not all be installed
    return source.exists() and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


class Yardstick:
    """A raw copy: in C++ where its source is beside the repository and compiles, else in Python."""

    def __init__(self, folder):
        self.binary = folder / "phys"
        if not self.binary.exists() and not compiles(SHARED_SOURCE, self.binary):
            print("The yardstick is scripts/bench_raw_copy.py.")
            self.binary = None

    def contestant(self, source, output):
        name = "raw copy, O_DIRECT writes (yardstick)"
        if self.binary and source.is_file():
            return Contestant(name, [self.binary, "one", "odw2", source, output], source, output)
        script = ROOT / "scripts" / "bench_raw_copy.py"
        return Contestant(name, [sys.executable, script, source, output], source, output,
                          reports_seconds=True)


def cp_and_sync(source, output):
    return Contestant("cp and sync", ["sh", "-c", f"cp -r {source} {output} && sync"], source,
                      output)


def torch_conversion(function, source, output):
    code = TORCH_CONVERSION.format(function, str(source), str(output))
    return Contestant(f"PyTorch's {function}", [sys.executable, "-W", "ignore", "-c", code],
                      source, output)


def to_torch(folder, yardstick, programs):
    source, output = folder / "dcp", folder / "out.pt"
    return "DCP to torch.save", [
        Contestant("ckpt-convert", [programs / "ckpt-convert", source, output, "--to", "torch"],
                   source, output),
        yardstick.contestant(source / "__0_0.distcp", folder / "out.raw"),
        cp_and_sync(source, folder / "out.cp"),
        torch_conversion("dcp_to_torch_save", source, output)]


def to_dcp(folder, yardstick, programs):
    source, output = folder / "model.pt", folder / "out.dcp"
    return "torch.save to DCP", [
        Contestant("ckpt-convert",
                   [programs / "ckpt-convert", source, output, "--to", "torch_dist"], source,
                   output),
        yardstick.contestant(source, folder / "out.raw"),
        cp_and_sync(source, folder / "out.cp"),
        torch_conversion("torch_save_to_dcp", source, output)]


def reshard(folder, yardstick, programs, checkpoint_format):
    source, output = folder / f"lw_{checkpoint_format}_dp2", folder / "out.lw"
    return f"reshard 2 to 4, {checkpoint_format}", [
        Contestant("reshard", [programs / "reshard", source, output, "--dp", "4"], source, output),
        yardstick.contestant(source, folder / "out.raw"),
        cp_and_sync(source, folder / "out.cp")]


def verifying(folder, programs, name):
    source = folder / name
    read = [sys.executable, ROOT / "scripts" / "bench_raw_read.py", source]
    return f"verify of {name}", [
        Contestant("ckpt-inspect verify", [programs / "ckpt-inspect", "verify", source], source,
                   None),
        Contestant("raw read, two threads (yardstick)", read, source, None, reports_seconds=True)]


def hashing(folder, programs):
    source = folder / "dcp" / "__0_0.distcp"
    return "hash of a DCP folder", [
        Contestant("ckpt-inspect hash", [programs / "ckpt-inspect", "hash", folder / "dcp"], source,
                   None),
        Contestant("raw read, one thread (yardstick)", [sys.executable, "-c", READ, source], source,
                   None),
        Contestant("openssl sha256, one core", ["openssl", "dgst", "-sha256", source], source,
                   None)]


def measure(folder, size, options):
    yardstick, programs = Yardstick(folder), options.programs
    makers = {
        "to-torch": lambda: to_torch(folder, yardstick, programs),
        "to-dcp": lambda: to_dcp(folder, yardstick, programs),
        "reshard-torch": lambda: reshard(folder, yardstick, programs, "torch"),
        "reshard-torch_dist": lambda: reshard(folder, yardstick, programs, "torch_dist"),
        "hash": lambda: hashing(folder, programs),
    }
    for name in VERIFIED:
        makers[f"verify-{name}"] = lambda name=name: verifying(folder, programs, name)
    for part in options.part:
        if part == "start":
            continue
        title, contestants = makers[part]()
        if options.no_torch:
            contestants = [c for c in contestants if not c.name.startswith("PyTorch")]
        if len(options.size) > 1:
            title += f" ({size})"
        for cold in {"both": (False, True), "warm": (False,), "cold": (True,)}[options.cache]:
            interleave(title, contestants, cold, options)


def print_tables(results):
    for (title, cold), group in read_results(results).items():
        print_table(title, cold, group)


def make_checkpoints(folder, size):
    if (folder / "lw_torch_dist_dp2").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, ROOT / "scripts" / "bench_checkpoint.py", folder, "--size",
                    size], check=True, stdout=subprocess.DEVNULL)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path,
                        help="folder for the checkpoints, which are kept there; default: temporary")
    parser.add_argument("--size", action="append", choices=("2g", "8g", "tiny"),
                        help="of the checkpoints; may be given twice; default: 2g")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--cache", choices=("both", "warm", "cold"), default="both")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each contestant")
    parser.add_argument("--starts", type=int, default=15, help="runs of each start-up")
    parser.add_argument("--settle", type=float, default=2, help="idle seconds before each run")
    parser.add_argument("--touch", type=int, default=0, metavar="GIB",
                        help="memory that is touched, and freed, right before each cold run")
    parser.add_argument("--results", type=Path, help="file that measurements are appended to")
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--no-torch", action="store_true", help="without PyTorch's converters")
    options = parser.parse_args()
    options.part = options.part or list(PARTS)
    options.size = options.size or ["2g"]
    return options


def main():
    options = parse_arguments()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}")
    if "start" in options.part:
        start_up(options.starts, options.programs)
    with tempfile.TemporaryDirectory(dir=options.work) as temporary:
        folder = options.work or Path(temporary)
        options.results = options.results or Path(temporary) / "results"
        options.results.touch()
        for size in options.size:
            make_checkpoints(folder / size, size)
            measure(folder / size, size, options)
            if not options.work:
                shutil.rmtree(folder / size)
        print_tables(options.results)


if __name__ == "__main__":
    main()

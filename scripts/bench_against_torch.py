"""Our programs against PyTorch's, interleaved on one machine; prints Markdown tables.

usage: bench_against_torch.py [--work DIR] [--repeat N] [--starts N] [--settle S]

Start-up: `ckpt-inspect` on the sample against `python -c "import torch"`. Conversion: ckpt-convert
against PyTorch's dcp_to_torch_save and torch_save_to_dcp on a checkpoint of 1.9 GB, with a plain
copy of the same bytes as yardstick. Every contestant starts after the same idle time and with the
source in the page cache. Peak memory is the kernel's high-water mark of resident memory (VmHWM),
which for our programs includes no page cache; it is polled, so the last milliseconds may be missed.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"
SAMPLE = ROOT / "tests" / "golden" / "lw_muon_bf16_torch_dp2" / "ckpt"
SHARED_GENERATOR = ROOT.parent / "shared" / "bench" / "gen.py"
TORCH_CONVERSION = ("from torch.distributed.checkpoint.format_utils import {0}; "
                    "{0}({1!r}, {2!r})")


@dataclass
class Contestant:
    name: str
    command: list
    source: Path = None
    output: Path = None
    seconds: list = field(default_factory=list)
    peak_bytes: list = field(default_factory=list)

    def run(self):
        process_began = time.perf_counter()
        process = subprocess.Popen([str(word) for word in self.command],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        peak = 0
        if self.output is not None:
            while process.poll() is None:
                peak = resident_peak_bytes(process.pid) or peak  # never falls in one program
                time.sleep(0.005)
        stderr = process.communicate()[1]
        self.seconds.append(time.perf_counter() - process_began)
        self.peak_bytes.append(peak)
        if process.returncode != 0:
            sys.exit(f"{self.name} failed:\n{stderr.decode(errors='replace')[-2000:]}")


def resident_peak_bytes(process_id):
    try:
        for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has just ended
        pass
    return 0


def files_of(path):
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def warm(path):
    buffer = bytearray(4 << 20)
    for name in files_of(path):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def prepare(contestant, settle):
    if contestant.output is not None:
        remove(contestant.output)
        warm(contestant.source)
    time.sleep(settle)


def interleave(contestants, repeat, settle):
    for _ in range(repeat):
        for contestant in contestants:
            prepare(contestant, settle)
            contestant.run()
            print(f"  {contestant.name}: {contestant.seconds[-1]:.4f} s", file=sys.stderr)
    for contestant in contestants:
        if contestant.output is not None:
            remove(contestant.output)


def start_up(repeat):
    ours = Contestant("ckpt-inspect", [BIN / "ckpt-inspect", SAMPLE])
    theirs = Contestant("python -c 'import torch'", [sys.executable, "-c", "import torch"])
    for contestant in (ours, theirs):
        contestant.run()  # the first run fills the page cache
        contestant.seconds.clear()
    interleave([ours, theirs], repeat, 0)
    print("\n| start-up | median | fastest | slowest |\n|---|---|---|---|")
    for c in (ours, theirs):
        print(f"| {c.name} | {1e3 * statistics.median(c.seconds):.1f} ms | "
              f"{1e3 * min(c.seconds):.1f} ms | {1e3 * max(c.seconds):.1f} ms |")
    ratios = [b / a for a, b in zip(ours.seconds, theirs.seconds)]
    print(f"\nRatio of neighbouring runs: median {statistics.median(ratios):.0f}, "
          f"from {min(ratios):.0f} to {max(ratios):.0f}.")


def conversions(folder, repeat, settle):
    saved, dcp = folder / "model.pt", folder / "dcp"
    to_torch, to_dcp, copy = folder / "out.pt", folder / "out.dcp", folder / "out.copy"
    directions = {
        "DCP to torch.save": [
            Contestant("ckpt-convert", [BIN / "ckpt-convert", dcp, to_torch, "--to", "torch"],
                       dcp, to_torch),
            Contestant("dcp_to_torch_save",
                       [sys.executable, "-W", "ignore", "-c",
                        TORCH_CONVERSION.format("dcp_to_torch_save", str(dcp), str(to_torch))],
                       dcp, to_torch)],
        "torch.save to DCP": [
            Contestant("ckpt-convert", [BIN / "ckpt-convert", saved, to_dcp, "--to", "torch_dist"],
                       saved, to_dcp),
            Contestant("torch_save_to_dcp",
                       [sys.executable, "-W", "ignore", "-c",
                        TORCH_CONVERSION.format("torch_save_to_dcp", str(saved), str(to_dcp))],
                       saved, to_dcp),
            Contestant("dd oflag=direct (yardstick)",
                       ["dd", f"if={saved}", f"of={copy}", "bs=8M", "oflag=direct"], saved, copy)],
    }
    count_bytes = sum(file.stat().st_size for file in files_of(saved))
    print(f"\n| {count_bytes / 1e9:.2f} GB | median | fastest | slowest | peak memory |")
    print("|---|---|---|---|---|")
    for direction, contestants in directions.items():
        interleave(contestants, repeat, settle)
        for c in contestants:
            print(f"| {direction}: {c.name} | {statistics.median(c.seconds):.2f} s | "
                  f"{min(c.seconds):.2f} s | {max(c.seconds):.2f} s | "
                  f"{max(c.peak_bytes) / 1e6:.0f} MB |")


def make_checkpoint(folder):
    if SHARED_GENERATOR.exists():
        command = [sys.executable, SHARED_GENERATOR, "--size", "2g", "--out", folder]
    else:
        command = [sys.executable, ROOT / "scripts" / "bench_checkpoint.py", folder]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder for the checkpoints; default: temporary")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each conversion")
    parser.add_argument("--starts", type=int, default=15, help="runs of each start-up")
    parser.add_argument("--settle", type=float, default=4, help="idle seconds before a conversion")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    start_up(options.starts)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        make_checkpoint(Path(folder))
        conversions(Path(folder), options.repeat, options.settle)


if __name__ == "__main__":
    main()

"""What changes of tensor and pipeline parallel sizes cost beside a raw copy, and what they read.

usage: bench_sizes.py [--work DIR] [--programs DIR] [--repeat N] [--settle S]
       bench_sizes.py --killed SOURCE [--work DIR] [--programs DIR]

The first makes a LayerWise state of 2 GB in both containers, at TP2 PP2, TP8 and TP1, and reshards
it: rows and columns are joined, and cut. The yardstick (bench_raw_copy.py) copies the bytes of the
result. "Read" is what the process read in all, by its account in /proc, for each byte of the
source. Sources are in the page cache, and then on the disk alone. Needs 25 GB of disk.

The second reshards a torch_dist checkpoint by one process, and then by eight, of which two are
killed on their way and started again, and compares SHA-256 of all files.
"""
import argparse
import hashlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench_timing
from bench_timing import Contestant

ROOT = Path(__file__).resolve().parent.parent
RAW_COPY = ROOT / "scripts" / "bench_raw_copy.py"
WHOLE = ["--tp", "1", "--pp", "1", "--dp", "2"]
STAGES = ["--tp", "2", "--pp", "2", "--dp", "2"]
PARTS = ["--tp", "8", "--pp", "1", "--dp", "1"]
EIGHT_RANKS = ["--tp", "2", "--dp", "4"]
HEAD = ("| | reshard | raw copy | reshard is faster by | processor time of both "
        "| read, of it from the disk | memory |\n|---|---|---|---|---|---|---|")
KILLED = {2: 0.5, 5: 0.7}  # rank: after which part of the time that eight processes take


def reshard(options, source, made, words):
    return [options.programs / "reshard", source, made, *words, "--quiet"]


def make_sources(options, work):
    """{container: {name: folder}}"""
    # In a process of its own: whoever is started by one that had much memory seems to have it.
    subprocess.run([sys.executable, __file__, "--make", work], check=True)
    sources = {}
    for container in ("torch_dist", "torch"):
        whole = work / f"lw_{container}_dp2"
        made = {"TP1": whole}
        for name, words in (("TP2 PP2", STAGES), ("TP8", PARTS)):
            made[name] = work / f"{container}_{name.replace(' ', '')}"
            subprocess.run(reshard(options, whole, made[name], words), check=True,
                           stdout=subprocess.DEVNULL)
        sources[container] = made
    return sources


def ratio_text(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def contest(options, title, source, words, work):
    result, output = work / "result", work / "output"
    subprocess.run(reshard(options, source, result, words), check=True, stdout=subprocess.DEVNULL)
    ours = Contestant("reshard", reshard(options, source, output, words), source, output)
    raw = Contestant("raw copy", [sys.executable, RAW_COPY, result, output], result, output,
                     reports_seconds=True)
    for cold in (False, True):
        bench_timing.interleave(title, [ours, raw], cold, options)
        group = bench_timing.read_results(options.results)[(title, cold)]
        mine, others = group["reshard"], group["raw copy"]
        read = statistics.median(r["bytes_read"] / r["source_bytes"] for r in mine)
        from_disk = statistics.median(r["bytes_from_disk"] / r["source_bytes"] for r in mine)
        print(f"| {title}, {'disk' if cold else 'page cache'} | "
              f"{bench_timing.median(mine):.2f} s | {bench_timing.median(others):.2f} s | "
              f"{ratio_text([b['seconds'] / a['seconds'] for a, b in zip(mine, others)])} | "
              f"{bench_timing.median(mine, 'cpu_seconds'):.2f} s, "
              f"{bench_timing.median(others, 'cpu_seconds'):.2f} s | {read:.2f}, {from_disk:.2f} | "
              f"{max(r['peak_bytes'] for r in mine) / 1e6:.0f} MB |", flush=True)
    shutil.rmtree(result)


def compare(options, work):
    print(HEAD)
    for container, sources in make_sources(options, work).items():
        for before, after, words in (("TP2 PP2", "TP1", WHOLE), ("TP8", "TP1", WHOLE),
                                     ("TP1", "TP2 PP2", STAGES), ("TP1", "TP8", PARTS)):
            gigabytes = bench_timing.size_of(sources[before]) / 1e9
            contest(options, f"{container}, {before} to {after}, {gigabytes:.2f} GB",
                    sources[before], words, work)


def hashes_of(folder):
    hashes = {}
    for path in bench_timing.files_of(folder):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        hashes[str(path.relative_to(folder))] = digest.hexdigest()
    return hashes


class Shares:
    """Eight processes that make one result."""

    def __init__(self, options, made):
        self.options, self.made = options, made
        self.running = {}

    def start(self, ranks):
        for rank in ranks:
            self.running[rank] = subprocess.Popen(
                reshard(self.options, self.options.killed, self.made, EIGHT_RANKS) +
                ["--resume", "--rank", str(rank), "--world-size", "8"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait(self):
        for rank, process in self.running.items():
            _, errors = process.communicate()
            if process.returncode != 0:
                sys.exit(f"rank {rank} exits with {process.returncode}: {errors}")
        self.running = {}


def run_killed(options, work):
    began = time.perf_counter()
    subprocess.run(reshard(options, options.killed, work / "one", EIGHT_RANKS), check=True,
                   stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    gigabytes = bench_timing.size_of(work / "one") / 1e9
    expected = hashes_of(work / "one")
    shutil.rmtree(work / "one")
    shares = Shares(options, work / "eight")
    began = time.perf_counter()
    shares.start(range(8))
    for rank, part in KILLED.items():
        time.sleep(max(0, began + part * seconds - time.perf_counter()))
        shares.running[rank].send_signal(signal.SIGKILL)
        code = shares.running.pop(rank).wait()
        print(f"rank {rank}: killed after {time.perf_counter() - began:.1f} s, exit code {code}")
    shares.wait()
    print("published without them:", (work / "eight").exists())
    shares.start(KILLED)
    shares.wait()
    print(f"{gigabytes:.2f} GB in {len(expected)} files; one process: {seconds:.1f} s; eight, two "
          f"of them killed and resumed: {time.perf_counter() - began:.1f} s")
    if hashes_of(work / "eight") != expected:
        sys.exit("the files are different")
    print("all files have the same bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--settle", type=float, default=1)
    parser.add_argument("--touch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--killed", type=Path, metavar="SOURCE")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        import bench_checkpoint
        bench_checkpoint.write_megatron(bench_checkpoint.SIZES["2g"], options.make)
        return
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        options.results = Path(work) / "results.jsonl"
        (run_killed if options.killed else compare)(options, Path(work))


if __name__ == "__main__":
    main()

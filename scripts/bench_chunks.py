"""What listing and planning cost as the number of chunks grows, and against PyTorch.

usage: bench_chunks.py [--work DIR] [--programs DIR] [--repeat N] [--chunks-max N] [--tensors N]

Listing: `ckpt-inspect ls --json` against PyTorch's FileSystemReader.read_metadata on a .metadata of
--tensors tensors with 64 chunks each (default 20,000: 1.28 million chunks, 182 MB), interleaved.
Curves: 10^2, 10^3, ... chunks, listed, and planned by `ckpt-convert --dry-run` to one torch.save
file. The .distcp files are sparse: neither program reads them. Seconds are the median and minimum
of --repeat runs, for PyTorch of read_metadata() alone, without its import; memory is the kernel's
peak of resident memory (ru_maxrss), which is never below this script's own 15 MB.
"""
import argparse
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_timing import Contestant, median, run

ROOT = Path(__file__).resolve().parent.parent
CHUNKS_OF_A_TENSOR = 64
ROWS, COLUMNS = 16, 1024
ENTRY_BYTES = 66_000  # a torch.save archive of 16 x 1024 float32 elements, about
# Tells how long the reading alone took: importing torch is not what is compared.
READ_METADATA = """
import time
from torch.distributed.checkpoint import FileSystemReader
reader, began = FileSystemReader({0!r}), time.perf_counter()
metadata = reader.read_metadata()
print(time.perf_counter() - began, flush=True)
"""


def cells(results):
    return (f"{median(results):.3f} s | {min(result['seconds'] for result in results):.3f} s | "
            f"{max(result['peak_bytes'] for result in results) / 1e6:.0f} MB")


def in_turn(contestants, repeat):
    """The results of each contestant."""
    rounds = [[run(contestant) for contestant in contestants] for _ in range(repeat)]
    return list(zip(*rounds))


def write_metadata(folder, tensors, chunks):
    """A .metadata as DCP writes it: chunk i of each tensor lies in file i."""
    import torch
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    entries, places = {}, {}
    for t in range(tensors):
        key = f"optimizer.state.exp_avg.decoder.layers.{t}.mlp.linear_fc1.weight"
        parts = []
        for c in range(chunks):
            offsets = torch.Size([c * ROWS, 0])
            parts.append(dcp.ChunkStorageMetadata(offsets, torch.Size([ROWS, COLUMNS])))
            places[dcp.MetadataIndex(key, offsets, None)] = _StorageInfo(
                f"__{c}_0.distcp", t * ENTRY_BYTES, ENTRY_BYTES)
        entries[key] = dcp.TensorStorageMetadata(
            dcp.TensorProperties(torch.float32), torch.Size([ROWS * chunks, COLUMNS]), parts)
    folder.mkdir(parents=True)
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(dcp.Metadata(entries, {key: (key,) for key in entries}, places,
                                 dcp.StorageMeta()), file)
    for c in range(chunks):
        with open(folder / f"__{c}_0.distcp", "wb") as file:
            file.truncate(tensors * ENTRY_BYTES)


def generate(folder, tensors, chunks):
    """In a process of its own: Python keeps what it has allocated."""
    subprocess.run([sys.executable, __file__, "--generate", str(folder), str(tensors),
                    str(chunks)], check=True)


def compare_listing(options, work):
    folder = work / "large"
    generate(folder, options.tensors, CHUNKS_OF_A_TENSOR)
    contestants = [
        Contestant("ckpt-inspect ls --json",
                   [options.programs / "ckpt-inspect", "ls", folder, "--json"]),
        Contestant("PyTorch read_metadata",
                   [sys.executable, "-c", READ_METADATA.format(str(folder))],
                   reports_seconds=True)]
    ours, torch = results = in_turn(contestants, options.repeat)
    count = options.tensors * CHUNKS_OF_A_TENSOR
    print(f"\n{count:,} chunks | median | minimum | peak memory\n--- | --- | --- | ---")
    for contestant, own in zip(contestants, results):
        print(f"{contestant.name} | {cells(own)}")
    faster = median(torch) / median(ours)
    smaller = (max(result["peak_bytes"] for result in torch) /
               max(result["peak_bytes"] for result in ours))
    print(f"\n{faster:.1f} times faster, in 1/{smaller:.1f} of the memory", flush=True)
    shutil.rmtree(folder)


def print_curves(options, work):
    print("\nchunks | list: median | minimum | peak | plan: median | minimum | peak\n"
          "--- | --- | --- | --- | --- | --- | ---")
    count = 100
    while count <= options.chunks_max:
        chunks = min(CHUNKS_OF_A_TENSOR, count // 10)
        folder = work / f"chunks_{count}"
        generate(folder, count // chunks, chunks)
        listing = Contestant("ls", [options.programs / "ckpt-inspect", "ls", folder, "--json"])
        planning = Contestant("plan", [options.programs / "ckpt-convert", folder, work / "out.pt",
                                       "--to", "torch", "--dry-run", "--json"])
        lists, plans = in_turn([listing, planning], options.repeat)
        print(f"{count // chunks * chunks:,} | {cells(lists)} | {cells(plans)}", flush=True)
        shutil.rmtree(folder)
        count *= 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tensors", type=int, default=20_000)
    parser.add_argument("--chunks-max", type=int, default=1_000_000)
    parser.add_argument("--generate", nargs=3, metavar=("DIR", "TENSORS", "CHUNKS"),
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        folder, tensors, chunks = options.generate
        write_metadata(Path(folder), int(tensors), int(chunks))
        return
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        print_curves(options, Path(work))
        compare_listing(options, Path(work))


if __name__ == "__main__":
    main()

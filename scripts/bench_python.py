#!/usr/bin/env python3
"""Times the Python module against what users have: safetensors, torch.load and DCP, in alternated
pairs on the same files. docs/records/python.md has the results.

usage: PYTHONPATH=build/python .venv-test/bin/python scripts/bench_python.py [FOLDER] [--pairs N]

FOLDER (default: a temporary one) gets 6 GB of files, which are read once before they are timed.
"""
from __future__ import annotations

import argparse
import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file

import shardwise as sw

logging.disable(logging.WARNING)
torch.set_num_threads(os.cpu_count() or 1)
LARGE, SMALL = 16, 2048  # tensors: of 128 MiB, of 1 MiB


def network(count: int, elements: int) -> torch.nn.Module:
    model = torch.nn.Module()
    for number in range(count):
        weight = torch.full((elements // 1024, 1024), float(number))
        model.register_parameter(f"w{number}", torch.nn.Parameter(weight, requires_grad=False))
    return model


def write(folder: Path) -> None:
    for name, count in (("large", LARGE), ("small", SMALL)):
        weights = dict(network(count, (2 << 30) // 4 // count).state_dict())
        if name == "large":
            torch.save(weights, folder / "large.pt")
            save_file(weights, folder / "large.safetensors")
        dcp.save(weights, checkpoint_id=folder / f"{name}_dcp", no_dist=True)
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def shardwise_reads(path: Path, key: str, mmap: bool = False) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        with sw.open(path, mmap=mmap) as checkpoint:
            return checkpoint[key].torch()
    return read


def safetensors_reads(path: Path, key: str) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        with safe_open(path, "pt") as opened:
            return opened.get_tensor(key)
    return read


def torch_reads(path: Path, key: str) -> Callable[[], torch.Tensor]:
    return lambda: torch.load(path, mmap=True, weights_only=True)[key]


def dcp_reads(path: Path, key: str, like: torch.Tensor) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        state = {key: torch.empty_like(like)}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return state[key]
    return read


def summed(read: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """With a pass over the elements: what is mapped is read only then."""
    return lambda: read().sum()


def copied(read: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """Into memory of the process's own, which later changes of the file do not reach."""
    return lambda: read().clone()


def seconds(work: Callable[[], Any], collects: bool = False) -> float:
    """Without garbage collections, as timeit does it, or with those of a process as it is."""
    gc.collect()
    if not collects:
        gc.disable()
    start = time.perf_counter()
    work()
    taken = time.perf_counter() - start
    gc.enable()
    return taken


def compare(title: str, ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int,
            collects: bool = False) -> None:
    ours(), theirs()
    times = [(seconds(ours, collects), seconds(theirs, collects)) for _ in range(pairs)]
    median = statistics.median
    print(f"| {title} | {1e3 * median(a for a, _ in times):.1f} | "
          f"{1e3 * median(b for _, b in times):.1f} | {median(b / a for a, b in times):.2f} |",
          flush=True)


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def peak_beyond(work: Callable[[], Any]) -> int:
    """Resident bytes at the peak beyond those at the start."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def compare_loads(folder: Path, pairs: int) -> None:
    for name, count in (("large", LARGE), ("small", SMALL)):
        model = network(count, (2 << 30) // 4 // count)
        path = folder / f"{name}_dcp"
        compare(f"load_into, 2 GB DCP of {count} tensors, against dcp.load",
                lambda: sw.torch.load_into(model, path),
                lambda: dcp.load(model.state_dict(), checkpoint_id=path, no_dist=True), pairs)
        beyond = peak_beyond(lambda: sw.torch.load_into(model, path))
        theirs = peak_beyond(lambda: dcp.load(model.state_dict(), checkpoint_id=path, no_dist=True))
        print(f"memory beyond the model, {count} tensors: {beyond >> 20} MiB, dcp.load "
              f"{theirs >> 20} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--pairs", type=int, default=11)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if not (folder / "small_dcp").exists():
            write(folder)
        print("| what | Shardwise ms | other ms | ratio |\n|---|---|---|---|")
        like = torch.empty((2 << 30) // 4 // LARGE // 1024, 1024)
        safe, saved = folder / "large.safetensors", folder / "large.pt"
        for title, path, key, theirs in (
                ("safetensors file; safetensors", safe, "w7", safetensors_reads(safe, "w7")),
                ("torch file; torch.load(mmap=True)", saved, "/w7", torch_reads(saved, "w7"))):
            compare(f"open, one of 16 tensors of a {title}, mapped and summed",
                    summed(shardwise_reads(path, key, mmap=True)), summed(theirs), given.pairs)
            compare(f"one of 16 tensors of a {title}, in memory of its own",
                    shardwise_reads(path, key), copied(theirs), given.pairs)
        compare("the same of a DCP folder, summed; dcp.load",
                summed(shardwise_reads(folder / "large_dcp", "w7")),
                summed(dcp_reads(folder / "large_dcp", "w7", like)), given.pairs)
        small = torch.empty((2 << 30) // 4 // SMALL // 1024, 1024)
        compare("open, one of 2,048 tensors of a DCP folder; dcp.load",
                shardwise_reads(folder / "small_dcp", "w700"),
                dcp_reads(folder / "small_dcp", "w700", small), given.pairs)
        opened = sw.open(folder / "small_dcp")
        compare("one of 2,048 tensors of a DCP folder that is open; dcp.load",
                lambda: opened["w700"].torch(), dcp_reads(folder / "small_dcp", "w700", small),
                given.pairs)
        compare("open, one of 2,048 tensors, with the garbage collector on; dcp.load",
                shardwise_reads(folder / "small_dcp", "w700"),
                dcp_reads(folder / "small_dcp", "w700", small), given.pairs, collects=True)
        compare_loads(folder, max(3, given.pairs // 2))


if __name__ == "__main__":
    main()

"""Copies files as fast as this machine does it durably: the yardstick of scripts/bench.

usage: bench_raw_copy.py SOURCE TARGET      files, or folders whose files are copied one by one

Two threads, each a half of the file: buffered reads of 4 MiB, O_DIRECT writes into reserved room.
Prints the seconds of the work alone, without the start of the interpreter.
"""
import mmap
import os
import sys
import threading
import time
from pathlib import Path

BLOCK = 4 << 20
THREADS = 2
SECTOR = 4096


def copy_half(source, target, begin, end):
    block = mmap.mmap(-1, BLOCK)  # page-aligned, as O_DIRECT wants it
    view = memoryview(block)
    for offset in range(begin, end, BLOCK):
        count = os.preadv(source, [view], offset)
        written = os.pwritev(target, [view[:-(-count // SECTOR) * SECTOR]], offset)
        assert min(BLOCK, end - offset) <= count <= written


def copy_file(source, target):
    size = source.stat().st_size
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_DIRECT, 0o644)
    if size:
        os.posix_fallocate(writing, 0, size)
    half = -(-size // THREADS // BLOCK) * BLOCK
    threads = [threading.Thread(target=copy_half,
                                args=(reading, writing, begin, min(size, begin + half)))
               for begin in range(0, size, half or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.ftruncate(writing, size)
    os.close(reading)
    os.close(writing)


def copy(source, target):
    if source.is_file():
        return copy_file(source, target)
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        copy_file(file, place)


if __name__ == "__main__":
    began = time.perf_counter()
    copy(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{time.perf_counter() - began:.4f}")

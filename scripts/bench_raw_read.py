#!/usr/bin/env python3
"""Reads all files of a folder, two at once in pieces of 4 MiB, and prints the seconds that took.

usage: bench_raw_read.py PATH
"""
import os
import sys
import threading
import time
from pathlib import Path

from bench_timing import files_of

PIECE_BYTES = 4 << 20
HALVES = 2


def read_half(name, half):
    buffer = bytearray(PIECE_BYTES)
    descriptor = os.open(name, os.O_RDONLY)
    half_bytes = -(-os.fstat(descriptor).st_size // HALVES)
    for offset in range(half * half_bytes, (half + 1) * half_bytes, PIECE_BYTES):
        left_bytes = (half + 1) * half_bytes - offset
        os.preadv(descriptor, [memoryview(buffer)[:left_bytes]], offset)
    os.close(descriptor)


def main():
    began = time.perf_counter()
    for name in files_of(Path(sys.argv[1])):
        readers = [threading.Thread(target=read_half, args=(name, half)) for half in range(HALVES)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()

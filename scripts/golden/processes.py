"""Runs a function in several Gloo processes that are forked from this one, imports done."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

torch.set_num_threads(1)  # forked children must not inherit a used OpenMP pool


def _run_rank(rank: int, size: int, rendezvous: str, function: Callable, arguments: tuple) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size
    )
    try:
        function(*arguments)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def in_processes(size: int, function: Callable, *arguments: object) -> None:
    """Calls function(*arguments) on ranks 0..size-1 of a Gloo group; raises what a rank raises."""
    with tempfile.TemporaryDirectory(prefix="gloo") as folder:
        torch.multiprocessing.start_processes(
            _run_rank,
            args=(size, str(Path(folder) / "rendezvous"), function, arguments),
            nprocs=size,
            start_method="fork",
        )

"""Threads, forks, Ctrl-C and repeated use."""
from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwise as sw
from conftest import MEGATRON, tensors


def test_many_threads_read_one_checkpoint(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint, ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(lambda _: checkpoint["/transposed"].numpy(), range(200)))
        list(pool.map(lambda _: sw.hash(torch_file).digest, range(8)))
    for array in arrays:
        np.testing.assert_array_equal(array, tensors()["transposed"].numpy())


def test_a_forked_child_reads_what_its_parent_opened(torch_file: Path) -> None:
    with sw.open(torch_file) as checkpoint:
        tensor = checkpoint["/cube"]
        tensor.numpy()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                right = np.array_equal(tensor.numpy(), tensors()["cube"].numpy())
                os._exit(0 if right and sw.verify(torch_file).ok else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


def test_the_gil_is_free_while_a_tensor_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(50_000_000)}, tmp_path / "large.pt")
    with sw.open(tmp_path / "large.pt") as checkpoint:
        ticks, done = [0], threading.Event()

        def count() -> None:
            while not done.is_set():
                ticks[0] += 1
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        before = ticks[0]
        checkpoint["/w"].numpy()
        done.set()
        thread.join()
    assert ticks[0] > before + 10


INTERRUPTED = """
import os, signal, sys, time
import shardwise as sw
begun = []
def progress(*_):
    if not begun:
        begun.append(os.kill(os.getpid(), signal.SIGINT))
        time.sleep(0.5)  # the work waits here until the signal was seen
try:
    sw.convert(sys.argv[1], sys.argv[2], to="safetensors", progress=progress)
except KeyboardInterrupt:
    print("interrupted", os.path.exists(sys.argv[2]))
"""


def test_ctrl_c_ends_the_work_and_leaves_nothing(tmp_path: Path) -> None:
    torch.save({str(i): torch.zeros(5_000_000) for i in range(4)}, tmp_path / "a.pt")
    outcome = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, tmp_path / "a.pt", tmp_path / "b.safetensors"],
        capture_output=True, text=True, timeout=60)
    assert outcome.stdout == "interrupted False\n", outcome
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("use", [
    lambda path: sw.open(path)["/cube"].numpy(),
    lambda path: sw.load_file(path),
    lambda path: sw.hash(path),
    lambda path: pytest.raises(sw.Error, sw.open, path / "none"),
    lambda path: [param.weight.shape for param in sw.open(MEGATRON["torch"]).params.values()],
    lambda path: sw.open(MEGATRON["torch"]).rank().state_dict("lazy"),
], ids=range(6))
def test_nothing_is_kept_of_what_was_used(torch_file: Path, use: object) -> None:
    assert callable(use)
    for _ in range(20):
        use(torch_file)
    gc.collect()
    objects, files = len(gc.get_objects()), descriptors()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(60):
        use(torch_file)
    gc.collect()
    assert len(gc.get_objects()) < objects + 50 and descriptors() == files
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + 8_000  # KiB


def test_no_objects_of_the_module_are_left_at_the_end(torch_file: Path) -> None:
    """nanobind tells on stderr of instances that outlive the interpreter."""
    code = f"""if True:
        import shardwise as sw
        c = sw.open({str(torch_file)!r}); t = c["/cube"]; t.numpy(); sw.hash({str(torch_file)!r})
        r = sw.open({str(MEGATRON["torch"])!r}); r.params; r.rank().state_dict("lazy")"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             timeout=60)
    assert (outcome.returncode, outcome.stderr) == (0, "")

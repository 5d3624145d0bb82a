"""A change of parallel sizes by several processes, one of them killed: the bytes of one process."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from pathlib import Path

import pytest

from parallel_pairs import LAYOUTS, Sizes, sizes
from parallel_sets import needs_sets
from programs import BIN, succeed

pytestmark = needs_sets
PROCESSES = 3
CHANGES = (
    ("par_lw_muon_torch_tp2pp2dp2", sizes(pp=4, dp=2)),
    ("par_lw_muon_torch_dist_pp2vpp2dp2", sizes(tp=2, cp=2, dp=2)),
    ("par_lw_muon_moe_torch_ep2tp2dp2", LAYOUTS["dp4"]),
    ("par_adam_fp16_torch_dist_tp2dp2", sizes(pp=2)),
    ("par_do_adam_dp_reshardable_tp2pp2dp2", sizes(pp=4, dp=2)),
    ("par_do_adam_torch_tp2pp2dp2", sizes(tp=2, dp=3)),
    ("par_do_adam_moe_fully_reshardable_ep2tp2dp2", LAYOUTS["dp4"]),
)


def bytes_of_files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*")) if path.is_file()
    }


def start(source: Path, made: Path, target: Sizes, rank: int) -> subprocess.Popen:
    command = [BIN / "reshard", source, made, *target.options, "--resume", "--rank", str(rank),
               "--world-size", str(PROCESSES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 0, text


@pytest.mark.parametrize(("source", "target"), CHANGES, ids=str)
def test_several_processes_write_the_bytes_of_one(
    source: str, target: Sizes, sets: Path, tmp_path: Path
) -> None:
    root, one, many = sets / source / "ckpt", tmp_path / "one", tmp_path / "many"
    succeed("reshard", root, one, *target.options)
    finish([start(root, many, target, rank) for rank in range(PROCESSES)])
    assert bytes_of_files(many) == bytes_of_files(one)


@pytest.mark.parametrize(("source", "target"), CHANGES[:2], ids=str)
def test_a_killed_process_is_run_again(
    source: str, target: Sizes, sets: Path, tmp_path: Path
) -> None:
    root, one, many = sets / source / "ckpt", tmp_path / "one", tmp_path / "many"
    succeed("reshard", root, one, *target.options)
    killed = start(root, many, target, 1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    finish([start(root, many, target, 0)])
    assert not many.exists()
    finish([start(root, many, target, rank) for rank in (1, 2)])
    assert bytes_of_files(many) == bytes_of_files(one)


@pytest.mark.parametrize("threads", [1, 7])
def test_threads_do_not_change_a_byte(threads: int, sets: Path, tmp_path: Path) -> None:
    source, target = CHANGES[0]
    made = [tmp_path / "one", tmp_path / "other"]
    for root, options in zip(made, ((), ("-j", threads)), strict=True):
        succeed("reshard", sets / source / "ckpt", root, *target.options, *options)
    assert bytes_of_files(made[0]) == bytes_of_files(made[1])

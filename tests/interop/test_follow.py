"""ckpt-convert --follow: each iteration of a root once, when it is complete, until a signal."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from programs import BIN, GOLDEN, run

SOURCE = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
TRACKER = "latest_checkpointed_iteration.txt"
pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    for iteration in (100, 200):
        add(folder, iteration)
    return folder


def add(root: Path, iteration: int, tracked: bool = True) -> Path:
    folder = root / f"iter_{iteration:07}"
    shutil.copytree(next(SOURCE.glob("iter_*")), folder, copy_function=shutil.copyfile)
    if tracked:
        (root / TRACKER).write_text(str(iteration))
    return folder


def follow(root: Path, *words: object) -> subprocess.Popen:
    return subprocess.Popen(
        [BIN / "ckpt-convert", root, root.parent / "out", "--to", "safetensors", "--follow",
         "--poll", "1", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def results(root: Path) -> list[str]:
    out = root.parent / "out"
    return sorted(path.name for path in out.iterdir()) if out.is_dir() else []


def wait_for(root: Path, *names: str) -> None:
    deadline = time.monotonic() + 60
    while results(root) != list(names):
        assert time.monotonic() < deadline, (results(root), names)
        time.sleep(0.05)


def stop(process: subprocess.Popen) -> str:
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    return said[1]


def test_iterations_as_they_come(root: Path) -> None:
    process = follow(root)
    wait_for(root, "iter_0000100", "iter_0000200")
    time_of_first = (root.parent / "out/iter_0000100").stat().st_mtime_ns
    add(root, 300)
    wait_for(root, "iter_0000100", "iter_0000200", "iter_0000300")
    stop(process)
    assert (root.parent / "out/iter_0000100").stat().st_mtime_ns == time_of_first


def test_one_that_is_being_written_waits_for_its_tracker(root: Path) -> None:
    folder = add(root, 300, tracked=False)
    process = follow(root)
    wait_for(root, "iter_0000100", "iter_0000200")
    time.sleep(2.5)
    assert results(root) == ["iter_0000100", "iter_0000200"]
    (root / TRACKER).write_text("300")
    wait_for(root, "iter_0000100", "iter_0000200", "iter_0000300")
    stop(process)
    assert folder.is_dir()


def test_without_a_tracker_it_waits_until_nothing_changes(root: Path) -> None:
    (root / TRACKER).unlink()
    growing = root / "iter_0000100/late"
    process = follow(root)
    for _ in range(12):
        growing.write_text("still writing")
        time.sleep(0.2)
    assert "iter_0000100" not in results(root)
    growing.unlink()
    wait_for(root, "iter_0000100", "iter_0000200")
    stop(process)


def test_a_damaged_one_is_said_once_and_the_others_are_converted(root: Path) -> None:
    data = next((root / "iter_0000100").glob("*.distcp"))
    whole = data.read_bytes()
    data.write_bytes(whole[:100])
    process = follow(root)
    wait_for(root, "iter_0000200")
    time.sleep(2.5)
    data.write_bytes(whole)  # copied again
    wait_for(root, "iter_0000100", "iter_0000200")
    assert stop(process).count("iter_0000100 is not converted") == 1


def test_every_and_until(root: Path) -> None:
    add(root, 250)
    process = follow(root, "--every", 100, "--until", 200)
    assert process.wait(60) == 0
    assert results(root) == ["iter_0000100", "iter_0000200"]


def test_it_starts_again_where_it_was(root: Path) -> None:
    stop_after = follow(root, "--until", 100)
    assert stop_after.wait(60) == 0
    assert results(root) == ["iter_0000100"]
    assert follow(root, "--until", 200).wait(60) == 0
    assert results(root) == ["iter_0000100", "iter_0000200"]


def test_killed_at_any_time_leaves_no_half_result(root: Path) -> None:
    """Whatever SIGKILL leaves, the same command finishes it, and leaves nothing else."""
    for delay in (0.0, 0.01, 0.02, 0.04, 0.08):
        process = follow(root)
        time.sleep(delay)
        process.kill()
        process.communicate()
        for name in results(root):
            if name.startswith("iter_"):
                assert run("ckpt-inspect", "verify", root.parent / "out" / name, "-q").code == 0
    assert follow(root, "--until", 200).wait(60) == 0
    assert results(root) == ["iter_0000100", "iter_0000200"]


@pytest.mark.parametrize("words", [["--iteration", "100"], ["--dry-run"], ["--force"],
                                   ["--every", "0"]], ids=" ".join)
def test_options_of_one_conversion_are_refused(root: Path, words: list[str]) -> None:
    process = follow(root, *words)
    said = process.communicate(timeout=60)
    assert process.returncode == 2 and "--" in said[1], said

"""ckpt-inspect prune: what is kept of a root, and that nothing else is lost on the way."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from programs import BIN, GOLDEN, refuse, run, succeed

USAGE, UNSUPPORTED, NOT_FOUND = 2, 4, 5
# Each file's removal is a call of its own: the others take minutes.
LONG = ["unlinkat", "fsync", "mkdirat", "pwrite64", "ftruncate", "fallocate", "openat", "close"]
CALLS = ["renameat2", *(LONG if os.environ.get("SHARDWISE_LONG_TESTS") else [])]
SMALL = GOLDEN / "gpt1l_tiny_torch_dist_dp2"
TRACKER = "latest_checkpointed_iteration.txt"


def iteration_of(root: Path) -> Path:
    return next(root.glob("iter_*"))


def make_root(to: Path, numbers: list[int], broken: tuple[int, ...] = ()) -> Path:
    to.mkdir()
    for number in numbers:
        made = to / f"iter_{number:07d}"
        shutil.copytree(iteration_of(SMALL), made)
        if number in broken:
            (made / "metadata.json").unlink()
    (to / TRACKER).write_text(str(max(numbers)))
    return to


def numbers_in(root: Path) -> list[int]:
    return sorted(int(folder.name[5:]) for folder in root.glob("iter_*"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes()
            for file in sorted(folder.rglob("*")) if file.is_file()}  # fmt: skip


def test_it_says_what_it_would_do_and_acts_only_with_yes(tmp_path: Path) -> None:
    root = make_root(tmp_path / "ckpt", [1, 2, 3, 4, 5, 6])
    before = files_of(root)
    plan = ("prune", root, "--keep-last", 2, "--keep-every", 3)
    said = succeed("ckpt-inspect", *plan, "--dry-run")
    assert "would free" in said.stdout
    assert files_of(root) == before
    assert "--dry-run or --yes" in refuse(USAGE, "ckpt-inspect", *plan)
    planned = succeed("ckpt-inspect", *plan, "--dry-run", "--json").json()
    done = succeed("ckpt-inspect", *plan, "--yes", "--json").json()
    assert numbers_in(root) == [3, 5, 6]
    assert done["iterations"] == planned["iterations"]
    freed = sum(len(bytes_) for name, bytes_ in before.items() if name[:12] in
                ("iter_0000001", "iter_0000002", "iter_0000004"))  # fmt: skip
    assert done["freed_bytes"] == planned["freed_bytes"] == freed
    assert files_of(root) == {name: bytes_ for name, bytes_ in before.items()
                              if name[:12] in ("iter_0000003", "iter_0000005", "iter_0000006")
                              or name == TRACKER}  # fmt: skip


def test_the_newest_complete_one_and_what_is_newer_or_tracked_stay(tmp_path: Path) -> None:
    root = make_root(tmp_path / "ckpt", [1, 2, 3, 4, 5], broken=(3, 5))
    (root / TRACKER).write_text("2")
    succeed("ckpt-inspect", "prune", root, "--keep-last", 1, "--yes")
    assert numbers_in(root) == [2, 4, 5]
    broken = make_root(tmp_path / "broken", [1, 2], broken=(1, 2))
    before = files_of(broken)
    line = refuse(NOT_FOUND, "ckpt-inspect", "prune", broken, "--keep-last", 1, "--yes")
    assert "no iteration is complete" in line
    assert files_of(broken) == before


def test_an_optimizer_leaves_and_the_model_stays_as_it_was(tmp_path: Path) -> None:
    root = make_root(tmp_path / "ckpt", [1, 2, 3])
    model = [tmp_path / f"{name}.safetensors" for name in ("before", "after")]
    succeed("ckpt-convert", root / "iter_0000001", model[0], "--model-only")
    plan = ("prune", root, "--keep-last", 3, "--drop-optimizer-before", 3)
    done = succeed("ckpt-inspect", *plan, "--yes", "--json").json()
    assert [each["what"] for each in done["iterations"]] == ["keep", "trim", "trim"]
    succeed("ckpt-convert", root / "iter_0000001", model[1])
    assert model[0].read_bytes() == model[1].read_bytes()
    assert run("ckpt-inspect", "verify", root / "iter_0000001", "--quick").code == 0
    assert files_of(root / "iter_0000003") == files_of(iteration_of(SMALL))
    again = succeed("ckpt-inspect", *plan, "--yes", "--json").json()
    assert [each["what"] for each in again["iterations"]] == ["keep"] * 3
    assert not [name for name in os.listdir(root) if name.startswith(".")]


@pytest.mark.parametrize("seed", range(6))
def test_of_random_roots_what_the_rules_say_stays(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    numbers = sorted(chosen.sample(range(1, 40), 7))
    broken = tuple(chosen.sample(numbers, 2))
    root = make_root(tmp_path / "ckpt", numbers, broken)
    last, every = chosen.randint(1, 4), chosen.choice([None, 2, 5])
    tracked = chosen.choice(numbers)
    (root / TRACKER).write_text(str(tracked))
    complete = [number for number in numbers if number not in broken]
    newest = max(complete)
    kept = {*complete[-last:], tracked, *(n for n in numbers if n >= newest)}
    if every:
        kept |= {number for number in numbers if number % every == 0}
    words = ["--keep-every", every] if every else []
    succeed("ckpt-inspect", "prune", root, "--keep-last", last, *words, "--yes")
    assert numbers_in(root) == sorted(kept)
    for number in kept - set(broken):
        assert files_of(root / f"iter_{number:07d}") == files_of(iteration_of(SMALL))


def test_links_are_not_followed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "ckpt", [1, 2])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("1")
    (root / "iter_0000001/link").symlink_to(outside)
    shutil.move(root / "iter_0000001/common.pt", outside)
    (root / "iter_0000001/common.pt").symlink_to(outside / "common.pt")
    elsewhere = make_root(tmp_path / "elsewhere", [5])
    (root / "iter_0000000").symlink_to(elsewhere / "iter_0000005")
    succeed("ckpt-inspect", "prune", root, "--keep-last", 1, "--yes")
    assert numbers_in(root) == [0, 2]
    assert sorted(os.listdir(outside)) == ["common.pt", "precious"]
    assert numbers_in(elsewhere) == [5]


IN_A_MOUNT = """
set -e
mount --bind "$1" "$2"
set +e
"$3" prune "$4" --keep-last 1 --yes
echo "exit $?"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_mount_is_refused_by_its_path_and_nothing_is_removed(tmp_path: Path) -> None:
    root = make_root(tmp_path / "ckpt", [1, 2])
    outside, inside = tmp_path / "outside", root / "iter_0000001/data"
    for folder in (outside, inside):
        folder.mkdir()
    (outside / "precious").write_text("1")
    words = [str(outside), str(inside), str(BIN / "ckpt-inspect"), str(root)]
    done = subprocess.run(["unshare", "-m", "sh", "-c", IN_A_MOUNT, "sh", *words],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if "exit" not in done.stdout:
        pytest.skip(done.stderr.strip())
    assert done.stdout == f"exit {UNSUPPORTED}\n", done
    assert "iter_0000001/data: is a mount" in done.stderr, done
    assert (outside / "precious").exists()
    assert numbers_in(root) == [1, 2]


def syscalls_of(words: list[object], inject: str | None = None) -> tuple[int, str]:
    """Under strace: which calls about names there are, or one of them kills the program."""
    watched = ",".join(["renameat2", *LONG])
    command = ["strace", "-f", "-qq", "-e", f"trace={watched}"]
    command += ["-e", f"inject={inject}"] if inject else []
    done = subprocess.run([*command, BIN / "ckpt-inspect", *map(str, words)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("call", CALLS)
def test_killed_at_a_call_what_is_kept_is_whole_and_the_next_run_finishes(
    call: str, tmp_path: Path
) -> None:
    whole = files_of(iteration_of(SMALL))
    for number in range(1, 1000):
        root = make_root(tmp_path / f"{number}", [1, 2, 3])
        words = ["prune", root, "--keep-last", 2, "--drop-optimizer-before", 3, "--yes"]
        _, said = syscalls_of(words, f"{call}:signal=SIGKILL:when={number}")
        assert files_of(root / "iter_0000003") == whole
        assert run("ckpt-inspect", "verify", root / "iter_0000002", "--quick").code == 0
        succeed("ckpt-inspect", *words)
        assert numbers_in(root) == [2, 3]
        assert not [name for name in os.listdir(root) if name.startswith(".")]
        if "SIGKILL" not in said:
            return
        shutil.rmtree(root)
    pytest.fail("more calls than were tried")

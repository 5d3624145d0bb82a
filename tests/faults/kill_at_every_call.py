#!/usr/bin/env python3
"""Kills one of three processes at each of its calls that change a name, one call after the other.

usage: kill_at_every_call.py BIN PRELOAD

Of three processes that share a conversion, one is killed at its N-th call (PRELOAD counts them), or
the one that publishes at the N-th after that, for every N that there is. Then comes one of the
commands that docs/durability.md names; all of them where SHARDWISE_LONG_TESTS is set. The
destination is absent, old or whole at any time; what has been left can be completed or removed.
"""
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from kill_loop import CASES, tree

SIZE = 3
NOT_THERE_OR_EXISTS = 5
NEXT = ("again", "--resume", "--finish", "--clean", "alone")


class Scene:
    """One destination, before and after a kill."""

    def __init__(self, bin_folder, preload, folder, force):
        self.bin, self.preload, self.out = bin_folder, preload, folder / "out"
        self.case = CASES[0]
        self.force = ["--force"] if force else []
        self.old = None
        self.expected = None

    def command(self, *more):
        return self.case.command(self.bin, self.out, "-q", *more)

    def prepare(self):
        subprocess.run(["rm", "-rf", self.out.parent], check=True)
        self.out.parent.mkdir()
        if self.force:
            self.out.mkdir()
            (self.out / "old").write_bytes(b"old")
            self.old = tree(self.out)

    def run(self, *more):
        return subprocess.run(self.command(*more), capture_output=True, check=False)

    def run_ranks(self, ranks, kill_at=0, only_rank=None):
        """The exit codes of these processes of the share, at the same time."""
        running = []
        for rank in ranks:
            surroundings = dict(os.environ)
            if kill_at and only_rank in (None, rank):
                surroundings.update(LD_PRELOAD=str(self.preload), KILL_AT=str(kill_at))
                if only_rank is None:
                    surroundings["KILL_AFTER_PUBLISHING"] = "1"
            command = self.command("--rank", str(rank), "--world-size", str(SIZE), *self.force)
            running.append(subprocess.Popen(command, env=surroundings, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE))
        self.errors = [process.communicate()[1].decode() for process in running]
        return [process.returncode for process in running]

    def run_again(self):
        """One that comes while another one publishes is refused, and comes again."""
        ranks = list(range(SIZE))
        for _ in range(SIZE):
            codes = self.run_ranks(ranks)
            assert set(codes) <= {0, NOT_THERE_OR_EXISTS}, f"exit codes {codes}: {self.errors}"
            ranks = [rank for rank, code in zip(ranks, codes) if code != 0]
            if not ranks:
                return
        assert self.force, f"refused: {self.errors}"

    def state(self):
        if not os.path.lexists(self.out):
            assert self.old is None, "the old destination is gone"
            return "absent"
        now = tree(self.out)
        if now == self.expected:
            return "whole"
        assert now == self.old, "the destination is neither the old nor the new one"
        return "old"

    def left_over(self):
        return sorted(set(os.listdir(self.out.parent)) - {"out"})

    def next(self, what):
        before = self.state()
        if what == "again":
            self.run_again()
        elif what == "--resume":  # of one process: continues nothing of several
            outcome = self.run("--resume", *self.force)
            assert outcome.returncode in (0, NOT_THERE_OR_EXISTS), outcome
        elif what == "alone":
            outcome = self.run(*self.force)
            assert outcome.returncode in (0, NOT_THERE_OR_EXISTS), outcome
        else:
            outcome = self.run(what, *self.force)
            assert outcome.returncode in (0, NOT_THERE_OR_EXISTS), outcome
            assert what != "--clean" or outcome.returncode == 0, outcome
            assert what != "--finish" or outcome.returncode != 0 or self.state() == "whole", outcome
        after = self.state()
        assert before != "whole" or after == "whole", f"was whole, is {after}"
        # Of the share a process that comes late, with --force, begins another one.
        is_done = not self.force if what == "again" else what == "--clean" or before == "whole"
        assert not is_done or not self.left_over(), f"left over: {self.left_over()}"
        self.end(what)

    def end(self, what):
        """Whatever that command has left can be removed, and the work be done."""
        cleaned = self.run("--clean")
        assert cleaned.returncode == 0, cleaned
        assert not self.left_over(), f"--clean leaves {self.left_over()}"
        done = self.run("--force")
        assert done.returncode == 0, done
        assert self.state() == "whole" and not self.left_over(), f"left over: {self.left_over()}"


def kill_everywhere(scene, only_rank, is_long, counts):
    for number in itertools.count(1):
        was_killed = False
        for what in NEXT if is_long else (NEXT[number % len(NEXT)],):
            scene.prepare()
            codes = scene.run_ranks(range(SIZE), number, only_rank)
            was_killed = was_killed or -signal.SIGKILL in codes
            assert set(codes) <= {0, -signal.SIGKILL}, f"exit codes {codes}: {scene.errors}"
            try:
                scene.next(what)
            except AssertionError as problem:
                where = "after publishing" if only_rank is None else f"of rank {only_rank}"
                sys.exit(f"killed at call {number} {where}, then {what} {scene.force}: {problem}; "
                         f"left: {sorted(tree(scene.out.parent))}")
            counts["kills"] += was_killed
        if not was_killed:
            return


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bin_folder, preload = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    is_long = bool(os.environ.get("SHARDWISE_LONG_TESTS"))
    counts = {"kills": 0}
    with tempfile.TemporaryDirectory(prefix="shardwise-kill-") as folder:
        for force in (False, True):
            scene = Scene(bin_folder, preload, pathlib.Path(folder) / "work", force)
            scene.prepare()
            assert scene.run("--force").returncode == 0
            scene.expected = tree(scene.out)
            for only_rank in (None, 0):
                kill_everywhere(scene, only_rank, is_long, counts)
    print(f"{counts['kills']} kills: all could be completed or removed")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs command-line tests: what a command prints, where, and its exit code.

usage: run_cli_tests.py [--update] BIN CASE.sh...

CASE.sh runs in bash in an empty folder, with BIN first in PATH and $GOLDEN the real samples.
Beside it:
    CASE.stdout, CASE.stderr   what it must print, to the byte (no file: nothing)
    CASE.exit                  its exit code (no file: 0)
Paths of this machine are printed as GOLDEN and WORK. --update writes what was printed: read
the diff.
"""
import difflib
import os
import pathlib
import subprocess
import sys
import tempfile

TIMEOUT_SECONDS = 120
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"


def run(case, bin_folder):
    with tempfile.TemporaryDirectory(prefix="shardwise-cli-") as folder:
        work = os.path.realpath(folder)
        environment = {
            "PATH": f"{bin_folder.resolve()}:{os.environ['PATH']}",
            "GOLDEN": str(GOLDEN),
            "HOME": work,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
        }
        result = subprocess.run(
            ["bash", str(case.resolve())], cwd=work, env=environment, timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL, capture_output=True)
    shown = {
        name: text.decode("utf-8", "backslashreplace").replace(str(GOLDEN), "GOLDEN")
        .replace(work, "WORK")
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr))
    }
    shown["exit"] = f"{result.returncode}\n" if result.returncode else ""
    return shown


def expected_file(case, name):
    return case.with_suffix(f".{name}")


def faults(case, shown):
    lines = []
    for name, text in shown.items():
        path = expected_file(case, name)
        expected = path.read_text() if path.exists() else ""
        lines += difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"{path.name}", "printed", lineterm="")
        if expected != text and expected.splitlines() == text.splitlines():
            lines.append(f"{path.name}: the last line ends otherwise")
    return lines


def update(case, shown):
    for name, text in shown.items():
        path = expected_file(case, name)
        if text:
            path.write_text(text)
        else:
            path.unlink(missing_ok=True)


def main(arguments):
    updating = arguments[:1] == ["--update"]
    bin_folder, *cases = map(pathlib.Path, arguments[updating:])
    failed = 0
    for case in cases:
        shown = run(case, bin_folder)
        if updating:
            update(case, shown)
            continue
        found = faults(case, shown)
        print(f"{case.name}: {'ok' if not found else 'FAILED'}")
        print("\n".join(found), end="\n" if found else "")
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

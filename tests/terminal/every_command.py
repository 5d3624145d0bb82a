#!/usr/bin/env python3
"""Every command at 60, 80 and 120 columns, with colours and without, with UTF-8 and without, and
into pipes: no line is wider than the terminal, and nothing is sent that was not asked for.

usage: every_command.py BIN
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from commands import all_commands, lay_out, remove_outputs
from pty_screen import COLOUR, Screen, run_on_terminal, too_wide

SURROUNDINGS = [
    {},
    {"NO_COLOR": "1"},
    {"LC_ALL": "C"},
]


def faults_on_terminal(command, code, width, environment):
    printed, found_code = run_on_terminal(command, width, environment)
    if found_code != code:
        yield f"exit code {found_code}, not {code}: {printed}"
    for line in too_wide(Screen(printed).lines, width):
        yield f"{len(line)} columns: {line}"
    if "NO_COLOR" in environment and COLOUR.search(printed):
        yield "colours under NO_COLOR"
    if environment.get("LC_ALL") == "C" and not printed.isascii():
        yield "not ASCII under LC_ALL=C"


def faults_in_pipes(command, code, environment):
    # COLUMNS must not cut what goes into a pipe.
    surroundings = {"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "60", **environment}
    done = subprocess.run(command, env=surroundings, capture_output=True, timeout=120)
    if done.returncode != code:
        yield f"exit code {done.returncode}, not {code}: {done.stderr.decode()}"
    for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        if b"\x1b" in text or b"\r" in text:
            yield f"an escape sequence in {name}"
        if not text.isascii():
            yield f"not ASCII in {name}"


def main():
    bin_folder = pathlib.Path(sys.argv[1]).resolve()
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    failed = runs = 0

    def check(what, command, faults):
        nonlocal failed, runs
        runs += 1
        remove_outputs(pathlib.Path())
        for fault in faults:
            failed += 1
            print(f"{' '.join(command)} ({what}): {fault}")

    with tempfile.TemporaryDirectory() as folder:
        lay_out(pathlib.Path(folder))
        os.chdir(folder)
        for command, code in all_commands(bin_folder):
            for environment in SURROUNDINGS:
                shown = " ".join(f"{name}={value}" for name, value in environment.items())
                for width in (60, 80, 120):
                    check(f"{width} columns {shown}", command,
                          faults_on_terminal(command, code, width, environment))
                check(f"pipes {shown}", command, faults_in_pipes(command, code, environment))
        os.chdir("/")
    print(f"{runs} runs, {failed} faults")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""docs/records/first_hour.md: what Shardwise answers to the mistakes and questions of a first hour.

usage: first_hour.py [--update] BIN     runs every case of cases.py with the programs of BIN and
                                        compares the page with what is printed, or rewrites it
"""
import difflib
import pathlib
import re
import signal
import sys
import tempfile

import cases
import samples
from terminal import Place

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "records" / "first_hour.md"
LINES_SHOWN = 8

INTRODUCTION = """\
# The first hour

What the programs answer when something is mistyped, missing, damaged or not a checkpoint at all:
each row was run, and the text is what was printed. `ckpt` is a small Megatron checkpoint in format
`torch_dist`, `ckpt_torch` the same in format `torch`, `model.pt` a `torch.save` file, and `dcp` a
folder that PyTorch's distributed checkpoint can load. HERE stands for the current folder.

Exit codes: 0 done, equal or sound; 1 different, or damage found; 2 usage; 3 corrupt; 4 unsupported;
5 not found, exists already, or denied by the system; 130 Ctrl-C.

`tests/first_hour` keeps this page true; `scripts/update_docs` rewrites it.
"""


def run(case, programs):
    with tempfile.TemporaryDirectory(prefix="shardwise-first-hour-") as folder:
        place = Place(str(pathlib.Path(folder).resolve()), str(programs.resolve()))
        for name in case.samples.split():
            getattr(samples, name)(place)
        if case.ctrl_c:
            return place.end(case.command, signal.SIGINT)
        return place.run(case.command, as_user=case.as_user)


def code(text):
    """One line as code in a cell of a Markdown table."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{blank}{text}{blank}{fence}".replace("|", "\\|")


def row(case, programs):
    printed = run(case, programs)
    lines = [line for line in printed.lines if line]
    if case.numbers_vary:
        lines = [re.sub(r"\d+", "N", line) for line in lines]
    cell = [code(line) for line in lines[:LINES_SHOWN]]
    if len(lines) > LINES_SHOWN:
        more = len(lines) - LINES_SHOWN
        cell.append(f"... and {more} more line{'s' if more > 1 else ''}")
    command = code(case.command) + (", then Ctrl-C" if case.ctrl_c else "")
    return f"| {case.title} | {command} | {'<br>'.join(cell)} | {printed.exit_code} |"


def page(programs):
    text = INTRODUCTION
    for title, rows in cases.SECTIONS:
        text += f"\n## {title}\n\n| what | command | printed | exit code |\n|---|---|---|---|\n"
        text += "".join(row(case, programs) + "\n" for case in rows)
    return text


def main(arguments):
    updating = arguments[:1] == ["--update"]
    found = page(pathlib.Path(arguments[updating]))
    if updating:
        PAGE.write_text(found, encoding="utf-8")
        return 0
    written = PAGE.read_text(encoding="utf-8")
    print("\n".join(difflib.unified_diff(written.splitlines(), found.splitlines(), PAGE.name,
                                         "printed", lineterm="")))
    return 0 if written == found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

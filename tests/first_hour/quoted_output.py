#!/usr/bin/env python3
"""What pages quote is what is printed: the blocks marked `console` of Markdown files.

usage: quoted_output.py [--update] BIN PAGE.md...

In such a block a line `$ COMMAND` is followed by what the command prints. The commands of a page
run one after another in a folder that holds the small Megatron checkpoint `ckpt`, on a terminal of
80 columns. Without --update a difference is printed, and the exit code is 1.
"""
import difflib
import pathlib
import re
import sys
import tempfile

import samples
from terminal import Place

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def answered(block, place):
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            printed = place.run(line[2:])
            lines += [line, *printed.lines]
            if printed.exit_code < 0 or printed.exit_code > 128:
                lines.append(f"ended by a signal: exit code {printed.exit_code}")
    return "".join(f"{line}\n" for line in lines)


def with_what_is_printed(text, programs):
    with tempfile.TemporaryDirectory(prefix="shardwise-page-") as folder:
        place = Place(str(pathlib.Path(folder).resolve()), str(programs.resolve()))
        samples.megatron(place)
        return BLOCK.sub(lambda block: f"```console\n{answered(block[1], place)}```", text)


def main(arguments):
    updating = arguments[:1] == ["--update"]
    programs, *pages = map(pathlib.Path, arguments[updating:])
    different = False
    for page in pages:
        written = page.read_text(encoding="utf-8")
        found = with_what_is_printed(written, programs)
        if updating:
            page.write_text(found, encoding="utf-8")
            continue
        print("\n".join(difflib.unified_diff(written.splitlines(), found.splitlines(), page.name,
                                             "printed", lineterm="")))
        different |= written != found
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

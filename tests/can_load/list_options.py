#!/usr/bin/env python3
"""Prints the options of Megatron-LM's command line as arguments.tsv has them, by argument.

usage: list_options.py [--packages DIR]... TREE=FOLDER...

TREE is a name that --target-megatron takes; trees come in its order. Columns: argparse's name; its
options, " | " between two: the trees that have it, a digit each (0: not); option strings; kind
(value, list, true, false, either: --x and --no-x); type of a value, or -; default, as JSON without
spaces. An object as default is its text.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path

KINDS = {"_StoreTrueAction": "true", "_StoreFalseAction": "false",
         "BooleanOptionalAction": "either"}


def options_of(folder: str, packages: list[str]) -> list[tuple[str, ...]]:
    """In a process of its own: trees have the same module names."""
    sys.path[:0] = [folder, *packages, str(Path(__file__).resolve().parents[2] / "scripts")]
    from golden.run import devices, megatron_on_cpu  # noqa: F401

    devices.replace_devices()
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser()
    add_megatron_arguments(parser)
    rows = []
    for action in parser._actions[1:]:  # but --help
        kind = KINDS.get(type(action).__name__) or ("list" if action.nargs else "value")
        kind_of_value = getattr(action.type, "__name__", "str") if kind in ("value", "list") else ""
        rows.append((action.dest, ",".join(action.option_strings), kind,
                     kind_of_value.replace("<lambda>", "object") or "-",
                     json.dumps(action.default, default=str, separators=(",", ":"))))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", action="append", default=[])
    parser.add_argument("trees", nargs="+")
    words = parser.parse_args()
    folders = [tree.split("=", 1)[1] for tree in words.trees]
    had: dict[tuple[str, ...], list[int]] = {}
    for number, folder in enumerate(folders):
        with ProcessPoolExecutor(1) as pool:
            for row in pool.submit(options_of, folder, words.packages).result():
                had.setdefault(row, [0] * len(folders))[number] = 1
    for argument, rows in groupby(sorted(had.items()), key=lambda each: each[0][0]):
        options = (" ".join(["".join(map(str, trees)), *row[1:]]) for row, trees in rows)
        print(argument, " | ".join(options), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())

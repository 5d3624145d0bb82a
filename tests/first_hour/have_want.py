#!/usr/bin/env python3
"""docs/have_want.md: each command of its table is run, and what it wrote is verified.

usage: have_want.py BIN
"""
import pathlib
import re
import sys
import tempfile

import samples
from terminal import Place

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "have_want.md"
ROW = re.compile(r"^\|[^|`]*(?:`[^`]*`[^|`]*)*\|[^|]*\| `((?:ckpt-convert|reshard) [^`]*)` \|$")
MADE_BY = {"run_a": ("run_a",), "run_b": ("run_b",), "ckpt_torch": ("megatron_torch",),
           "zero1": ("zero1",), "llama_run": ("llama",), "hf": ("exported",),
           "fsdp2/ckpt": ("megatron_fsdp",), "mfsdp/ckpt": ("megatron_fsdp",),
           "torchtitan/step-6": ("trainers",), "model.pt": ("torch_save",),
           "model.safetensors": ("safetensors",), "other_root": ("other_root",)}


def names_of(command):
    """The samples and results that a command names."""
    return [word for word in command.split() if word in MADE_BY]


def faults(command, programs):
    with tempfile.TemporaryDirectory(prefix="shardwise-pairs-") as folder:
        place = Place(folder, str(programs.resolve()))
        makers = dict.fromkeys(maker for name in names_of(command) for maker in MADE_BY[name])
        for maker in makers:
            getattr(samples, maker)(place)
        done = place.run(command)
        if done.exit_code != 0:
            return [f"{command}: exit code {done.exit_code}", *done.lines]
        result = next(word for word in command.split() if re.fullmatch(r"out\S*|weights|other_root",
                                                                       word))
        checked = place.run(f"ckpt-inspect verify {result}")
        return [] if checked.exit_code == 0 else [f"verify after {command}", *checked.lines]


def main(arguments):
    programs = pathlib.Path(arguments[0])
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines()
            if line.startswith("| ") and "| command |" not in line]
    found = []
    for line in rows:
        row = ROW.match(line)
        found += faults(row[1], programs) if row else [f"no command: {line}"]
    print("\n".join(found), f"\n{len(rows)} commands")
    return 1 if found or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

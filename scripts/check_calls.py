#!/usr/bin/env python3
"""Checks that no room calls what a higher room defines: the object files of a build say which
function uses which, and the order in docs/ARCHITECTURE.md who may.

usage: check_calls.py BUILD [ROOT]   prints FILE calls SYMBOL of FILE; exit 1 if anything is wrong;
FILE is the folder where sources were compiled together

What a public header declares may be defined in any room of its library, so includes alone do not
show such a call.
"""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import check_house

LIBRARIES = ("libckpt", "liboptim", "libtraining", "libreplay", "tools", "python")
DEFINED = set("TDRBGS")  # strong symbols; weak ones (inline functions) have no one place


INCLUDED = re.compile(r'^#include "(.+)"', re.MULTILINE)


def source_of(build, root, compiled):
    """BUILD/libckpt/CMakeFiles/TARGET.dir/src/io/file.cc.o -> libckpt/src/io/file.cc

    Sources of one folder that were compiled together (UnityBuild.cmake) are called by their folder.
    """
    parts = compiled.relative_to(build).parts
    if len(parts) < 4 or parts[1] != "CMakeFiles":
        return None
    if parts[3] == "Unity":
        together = compiled.with_suffix("")  # of an older build, where it is missing
        found = INCLUDED.findall(together.read_text()) if together.is_file() else []
        folders = {Path(name).parent for name in found}
        folder = folders.pop() if len(folders) == 1 else None
        is_ours = folder and folder.is_relative_to(root) and not folder.is_relative_to(build)
        return folder.relative_to(root).as_posix() if is_ours else None
    name = "/".join((parts[0], *parts[3:])).removesuffix(".o")
    return name if (root / name).is_file() else None  # generated, or left by an older build


def read_symbols(build, root):
    """Who defines each symbol, and who uses it: two maps from symbols to sets of files."""
    sources = {}
    for library in LIBRARIES:
        for compiled in (build / library).rglob("*.o"):
            if name := source_of(build, root, compiled):
                sources[str(compiled)] = name
    defined, used = defaultdict(set), defaultdict(set)
    if sources:
        listed = subprocess.run(["nm", "--extern-only", "--portability", "--print-file-name",
                                 *sources], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            compiled, symbol, kind = line.split()[:3]
            place = used if kind == "U" else defined if kind in DEFINED else None
            if place is not None:
                place[symbol].add(sources[compiled.removesuffix(":")])
    return defined, used


def is_allowed(house, caller, definer):
    if house.place_of(caller) is None or house.place_of(definer) is None:
        return True
    return house.may_use(caller, definer)


def readable(symbol):
    return subprocess.run(["c++filt", symbol], capture_output=True, text=True,
                          check=True).stdout.strip()


def upward_calls(house, build):
    defined, used = read_symbols(build, house.root)
    faults = []
    for symbol, callers in used.items():
        definers = defined.get(symbol, set())
        for caller in callers:
            if not definers or any(is_allowed(house, caller, definer) for definer in definers):
                continue
            definer = min(definers)
            faults.append(f"{caller} calls {readable(symbol)} of {definer}: "
                          f"{check_house.folder_of(house, definer)} stands below "
                          f"{check_house.folder_of(house, caller)} in the list")
    return faults, len(defined)


def main():
    build = Path(sys.argv[1]).resolve()
    root = sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent.parent
    faults, count = upward_calls(check_house.House(root), build)
    for fault in sorted(faults):
        print(fault)
    if count == 0:
        print(f"{build}: no object file of {', '.join(LIBRARIES)}; build first")
    print(f"calls: {count} symbols, {len(faults)} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks the rules of the house: who may include whom (read from the table in
docs/ARCHITECTURE.md), how long files, functions and lines may be, which words are banned, which
phrases no message may contain, and that nothing lies unused.

usage: check_house.py [ROOT]      prints FILE:LINE: what is wrong; exit 1 if anything is
"""
import collections
import re
import sys
from pathlib import Path

import cpp_outline

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PUBLIC_HEADER_LINES = 120
PUBLIC_HEADERS = ("libckpt/include/", "liboptim/include/", "libtraining/include/",
                  "libreplay/include/")
MAX_KERNEL_LINES = 80  # a __global__ function
MAX_COLUMNS = 100
MAX_PARAMETERS = 4
MAX_ROOM_FILES = 45
LARGE_ROOMS = ("layout", "step", "tests")  # without rows for their folders so far

ROOMS_FILE = "docs/ARCHITECTURE.md"
FOLDERS = ("libckpt", "liboptim", "libtraining", "libreplay", "kernels", "tools", "tests",
           "scripts", "docs", "examples", ".ci")
CPP = (".cc", ".h", ".cu", ".cuh")
LIBRARIES = ("libckpt/", "liboptim/", "libtraining/", "libreplay/", "kernels/")
TOP_LEVEL = {
    *FOLDERS, "CMakeLists.txt", "CMakePresets.json", "README.md", "CHANGELOG.md",
    "CONTRIBUTING.md", "SECURITY.md", "LICENSE",
    ".clang-format", ".clang-tidy", ".gitignore", ".git", "shared",
}
VAGUE_NAMES = {"utils", "util", "helpers", "misc", "common", "manager", "impl"}
# As their writers called them.
NAMES_OF_OTHERS = ("tests/golden/", "liboptim/src/step/communication/gloo_shim/",
                   "tests/kernels/emulation/cuda/", "tests/device_fake/cuda/")
BANNED_WORDS = re.compile(r"\b(src|dst|tmp)\b")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
NOISY = re.compile(
    r"std::c(?:err|out|log)\b|\b(?:f?printf|puts|exit|_exit|abort|getenv|perror)\s*\(")
SYSTEM_CALLS = "libckpt/src/io/system_calls.cc"
FILE_CALLS = re.compile(
    r"(?<![\w:>)])::(?:p?read|p?write|open\w*|close\w*|\w*sync\w*|f?truncate|\w*allocate|"
    r"f?l?stat\w*|rename\w*|(?:un)?link\w*|mkdir\w*|rmdir|f?lock\w*|ioctl|syscall|mmap)\s*\(|"
    r"\bf(?:s|ilesystem)::(?:exists|is_\w+|\w*status|file_size|remove\w*|rename|copy\w*|"
    r"create_\w+|\w*canonical|\w*directory_iterator|space|last_write_time)\b|"
    r"\b[io]?fstream\b")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")  # of Markdown, to a file
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|farm|root|home)/\w")

# Phrases that a native speaker stumbles over, and what to write instead.
MESSAGES = ("libckpt/", "liboptim/", "libtraining/", "libreplay/", "tools/")
PHRASES = [(re.compile(pattern), instead) for pattern, instead in (
    (r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more than\b)", "is not a"),
    (r"\b(?:is|are) none of\b", "is not one of"),
    (r"\bthat (?:has|have) none\b", "without"),
    (r"\bdo(?:es)? not go with\b", "cannot be combined with"),
    (r"\banother [^;:,]*\bthan\b|\bother [^;:,]*\bthan this\b", "a different ... from"),
    (r"\ba (?:\w+ )?\w+ too many\b", "unexpected, too many"),
    (r"\bso many\b", "the number"),
    (r"\bsaid (?:twice|to be)\b|\bis said\b", "stored twice, expected"),
    (r"\b(?:is|are) wanted\b|\b(?:is|are|was|were) asked for\b", "expected, requested"),
    (r"\bdeals? the state\b", "changes the data-parallel size"),
    (r"\bnot looked at\b", "not checked"),
    (r"\b(?:has|have) not (?:the|a|an)\b|\b(?:has|have) not$", "does not have"),
    (r"\bof one's own\b", "custom"),
    (r"\bwhat holds\b|\bis whose\b", "name the thing"),
)]

# The words for third-party headers in the table's column `may include`.
THIRD_PARTY = [
    (re.compile(r"(ATen|c10|torch)/"), "LibTorch"),
    (re.compile(r"gloo/"), "LibTorch"),
    (re.compile(r"cuda|cublas|cub/|nccl"), "CUDA"),
    (re.compile(r"nlohmann/"), "nlohmann"),
    (re.compile(r"CLI/"), "CLI11"),
    (re.compile(r"zstd"), "zstd"),
    (re.compile(r"isa-l"), "ISA-L"),
    (re.compile(r"openssl/"), "OpenSSL"),
    (re.compile(r"boost/"), "Boost"),
    (re.compile(r"(sys|linux|arpa|netinet)/|(unistd|fcntl|dirent|signal|poll|dlfcn)\.h"), "POSIX"),
]


class House:
    """The tree under `root` and what was found wrong in it."""

    def __init__(self, root):
        self.root = Path(root).resolve()
        self.faults = []
        self.files = sorted(
            path.relative_to(self.root).as_posix()
            for folder in FOLDERS
            for path in (self.root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )
        self.code = [name for name in self.files if name.endswith(CPP)]
        self.outlines = {name: cpp_outline.Outline(self.text(name)) for name in self.code}
        self.rooms = self.read_rooms()

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def fault(self, name, line, problem):
        self.faults.append(f"{name}:{line}: {problem}")

    def read_rooms(self):
        """The rows of the table: (room, path prefixes, what it may include)."""
        rooms = []
        for line in self.text(ROOMS_FILE).splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|") or len(cells) != 5 or cells[0] in ("room", "---"):
                continue
            allowed = {word.strip() for word in cells[2].split(",")} | {cells[0]}
            rooms.append((cells[0], expand_braces(cells[1]), allowed))
        if not rooms:
            self.fault(ROOMS_FILE, 1, "has no table of rooms")
        return rooms

    def room_of(self, name):
        """The room whose path prefix is the longest that fits."""
        best = ("", None)
        for room, prefixes, allowed in self.rooms:
            for prefix in prefixes:
                fits = name == prefix or name.startswith(prefix.rstrip("/") + "/")
                if fits and len(prefix) > len(best[0]):
                    best = (prefix, (room, allowed))
        return best[1]


def expand_braces(folders):
    """'a/{b,c}.h d' -> ['a/b.h', 'a/c.h', 'd']"""
    paths = []
    for folder in folders.split():
        begin, brace, rest = folder.partition("{")
        choices, _, end = rest.partition("}")
        paths += [begin + choice + end for choice in choices.split(",")] if brace else [folder]
    return paths


def included_file(house, includer, path):
    """The file of this tree that an include names, or None for one from outside."""
    folder = Path(includer).parent.as_posix()
    places = [folder, *(f"{library}/{part}" for library in ("libckpt", "liboptim", "libtraining",
                                                            "libreplay")
                        for part in ("include", "src")), "kernels/include", "tools", "tests"]
    for place in places:
        if f"{place}/{path}" in house.outlines:
            return f"{place}/{path}"
    return None


def word_for(house, includer, path):
    """What the table calls an included header: a room or a third party; None for the standard."""
    inside = included_file(house, includer, path)
    if inside:
        room = house.room_of(inside)
        return room[0] if room else f"the folder of {inside}"
    if path.endswith("export.h"):  # generated
        return {"ckpt/export.h": "api", "optim/export.h": "step-api",
                "training/export.h": "training-api",
                "replay/export.h": "replay-api"}.get(path, "optim-api")
    for pattern, name in THIRD_PARTY:
        if pattern.match(path):
            return name
    return None


def check_includes(house):
    for room, prefixes, _ in house.rooms:
        for prefix in prefixes:
            if not (house.root / prefix).exists():
                house.fault(ROOMS_FILE, 1, f"room {room}: there is no {prefix}")
    for name in house.code:
        room = house.room_of(name)
        if room is None:
            house.fault(name, 1, f"lies in no room of {ROOMS_FILE}")
            continue
        for line, path in house.outlines[name].includes:
            word = word_for(house, name, path)
            if word and word not in room[1] and "everything" not in room[1]:
                house.fault(name, line, f"room {room[0]} may not include {path} ({word})")


def check_rooms(house):
    """Rows go from the bottom up, and a room is small enough to be looked over."""
    above = {room for room, _, _ in house.rooms}
    for room, _, allowed in house.rooms:
        for higher in sorted(allowed & above - {room}):
            house.fault(ROOMS_FILE, 1, f"room {room} may include {higher}, a row below its own")
        above.discard(room)
    files = collections.Counter()
    for name in house.code:
        files.update([room[0]] if (room := house.room_of(name)) else [])
    for room, count in files.items():
        if count > MAX_ROOM_FILES and room not in LARGE_ROOMS:
            house.fault(ROOMS_FILE, 1, f"room {room} has {count} files, at most {MAX_ROOM_FILES}: "
                                       "give its folders rows of their own")


def check_sizes(house):
    for name in house.files:
        if not name.endswith((*CPP, ".py", ".sh", ".cmake", "CMakeLists.txt")):
            continue
        lines = house.text(name).splitlines()
        if len(lines) > MAX_FILE_LINES:
            house.fault(name, 1, f"{len(lines)} lines, at most {MAX_FILE_LINES}")
        if name.startswith(PUBLIC_HEADERS) and len(lines) > MAX_PUBLIC_HEADER_LINES:
            house.fault(name, 1, f"{len(lines)} lines of a public header, at most "
                                 f"{MAX_PUBLIC_HEADER_LINES}")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS and not name.startswith("tests/cli/"):  # whole commands
                house.fault(name, number, f"{len(line)} columns, at most {MAX_COLUMNS}")
            if not line.isascii():
                house.fault(name, number, "not ASCII")


def check_functions(house):
    for name in house.code:
        for function in house.outlines[name].functions:
            limit = MAX_KERNEL_LINES if function.is_kernel else MAX_FUNCTION_LINES
            if function.line_count > limit:
                house.fault(name, function.line,
                            f"{function.name}: {function.line_count} lines, at most {limit}")
            if function.parameter_count > MAX_PARAMETERS and not name.startswith("tests/"):
                house.fault(name, function.line,
                            f"{function.name}: {function.parameter_count} parameters, "
                            f"at most {MAX_PARAMETERS}")


def check_words(house):
    for name in house.files:
        if name.startswith("tests/golden/"):
            continue
        raw = house.text(name).splitlines()
        for number, line in enumerate(raw, 1):
            if UNFINISHED.search(line):
                house.fault(name, number, "unfinished work is an issue, not a comment")
            if MACHINE_PATHS.search(line):
                house.fault(name, number, "a path of one machine")
        if name not in house.outlines:
            continue
        for number, line in enumerate(house.outlines[name].code.splitlines(), 1):
            for match in BANNED_WORDS.finditer(line):
                house.fault(name, number, f"'{match.group()}' is a banned name")
            if name.startswith(LIBRARIES) and NOISY.search(line):
                house.fault(name, number, "libraries do not print, exit or read the environment")
            if name.startswith("libckpt/") and name != SYSTEM_CALLS and FILE_CALLS.search(line):
                house.fault(name, number, "calls about files go through io/system_calls.h")


def check_phrases(house):
    for name, outline in house.outlines.items():
        if not name.startswith(MESSAGES):
            continue
        for line, text in outline.literals:
            for phrase, instead in PHRASES:
                for match in phrase.finditer(text):
                    house.fault(name, line, f"'{match.group()}' in a message; write '{instead}'")


def check_names(house):
    for entry in house.root.iterdir():
        ignored = re.match(r"build|\.venv|\.cache|\.pytest", entry.name)
        if entry.name not in TOP_LEVEL and not ignored:
            house.fault(entry.name, 1, "does not belong at the top level")
    for name in house.files:
        path = Path(name)
        for part in [path, *path.parents]:
            if part.stem in VAGUE_NAMES and part.as_posix() != "tools/common" and \
                    not name.startswith(NAMES_OF_OTHERS):
                house.fault(name, 1, f"'{part.stem}' says nothing about what is inside")
        if path.suffix in CPP and not re.fullmatch(r"[a-z0-9_]+", path.stem) and \
                not name.startswith(NAMES_OF_OTHERS):
            house.fault(name, 1, "file names are snake_case")
        if path.suffix == ".h" and "#pragma once" not in house.text(name):
            house.fault(name, 1, "has no #pragma once")


def check_dead_files(house):
    """Headers that nothing includes; scripts, Python, shell and pages that nothing mentions."""
    included = {included_file(house, name, path)
                for name in house.code for _, path in house.outlines[name].includes}
    words = {name: house.text(name) for name in house.files
             if not name.startswith("tests/golden/") or name.endswith(".md")}
    for extra in ("README.md", "CMakeLists.txt", "CHANGELOG.md"):
        words[extra] = house.text(extra) if (house.root / extra).exists() else ""
    for name in house.files:
        path = Path(name)
        if path.suffix == ".h" and name not in included and not name.startswith(NAMES_OF_OTHERS):
            if "/include/" not in name:  # public headers are there for others
                house.fault(name, 1, "no file includes it")
        elif name.startswith(("scripts/", "docs/")) or path.suffix in (".py", ".sh"):
            called = {path.name, path.stem} if path.suffix in (".cmake", ".py") else {path.name}
            globbed = re.fullmatch(r"(test_.*|.*_test|conftest)\.(py|sh)", path.name) or \
                name.startswith(("docs/decisions/", "docs/formats/", "tests/cli/"))
            if not globbed and not any(word in text for other, text in words.items()
                                       if other != name for word in called):
                house.fault(name, 1, "nothing mentions it")


def check_links(house):
    pages = [name for name in house.files if not name.startswith("tests/golden/")]
    pages += [path.name for path in house.root.glob("*.md")]
    for name in pages:
        if not name.endswith(".md"):
            continue
        for number, line in enumerate(house.text(name).splitlines(), 1):
            for target in LINK.findall(line):
                if not (house.root / name).parent.joinpath(target).exists():
                    house.fault(name, number, f"links to {target}, which is not there")


CHECKS = (check_includes, check_rooms, check_sizes, check_functions, check_words, check_phrases,
          check_names, check_dead_files, check_links)


def main():
    house = House(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    for check in CHECKS:
        check(house)
    for fault in sorted(house.faults):
        print(fault)
    functions = [f for outline in house.outlines.values() for f in outline.functions]
    longest = max((f.line_count for f in functions), default=0)
    print(f"house: {len(house.code)} source files, {len(functions)} functions, "
          f"the longest of {longest} lines, {len(house.faults)} faults")
    return 1 if house.faults else 0


if __name__ == "__main__":
    sys.exit(main())

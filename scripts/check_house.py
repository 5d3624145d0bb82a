#!/usr/bin/env python3
"""Checks the rules of the house: who may include whom (read from the tables in
docs/ARCHITECTURE.md), how long files, functions and lines may be, which words are banned, which
phrases no message may contain, and that nothing lies unused.

usage: check_house.py [ROOT]      prints FILE:LINE: what is wrong; exit 1 if anything is
"""
import collections
import re
import sys
from pathlib import Path

import cpp_outline

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_PUBLIC_HEADER_LINES = 120
MAX_PUBLIC_HEADERS = 60
SPLIT_LIBRARIES = ("libckpt", "liboptim", "libtraining", "libreplay")
PUBLIC_HEADERS = tuple(f"{library}/include/" for library in SPLIT_LIBRARIES)
MAX_KERNEL_LINES = 80  # a __global__ function
MAX_COLUMNS = 100
MAX_PARAMETERS = 4
MAX_FOLDER_FILES = 45
MAX_ROOMS = 25
MAX_ROOMS_FILE_LINES = 120  # two screens
MAX_PART_OF_A_LIBRARY = 0.42  # of the lines of SPLIT_LIBRARIES
# Lines are a budget: lower a number where code went, raise one with a reason in the commit's body.
MAX_LINES = {"libckpt": 41_350, "liboptim": 15_430, "libtraining": 44_100, "libreplay": 4_850,
             "kernels": 5_760, "tools": 17_800}

ROOMS_FILE = "docs/ARCHITECTURE.md"
FOLDERS = (*SPLIT_LIBRARIES, "kernels", "tools", "python", "tests", "scripts", "docs", "examples",
           ".ci")
CPP = (".cc", ".h", ".cu", ".cuh")
LIBRARIES = ("libckpt/", "liboptim/", "libtraining/", "libreplay/", "kernels/")
TOP_LEVEL = {
    *FOLDERS, "CMakeLists.txt", "CMakePresets.json", "README.md", "CHANGELOG.md",
    "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "llms.txt",
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

# The words for third-party headers in the table `from outside`.
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
        self.read_rooms()

    def text(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def fault(self, name, line, problem):
        self.faults.append(f"{name}:{line}: {problem}")

    def tables(self):
        """The rows of the tables of ROOMS_FILE, by what stands over their first column."""
        tables, rows = collections.defaultdict(list), None
        for line in self.text(ROOMS_FILE).splitlines():
            if not line.startswith("|"):
                rows = None
                continue
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if rows is None:
                rows = tables[cells[0]]
            elif not cells[0].startswith("---"):
                rows.append(cells)
        return tables

    def read_rooms(self):
        """The order of the rooms' folders, exceptions to it, and who may include third parties."""
        tables = self.tables()
        self.rooms = [row[0] for row in tables["room"]]
        self.order = [folder for row in tables["room"] for folder in expand_braces(row[1])]
        self.exceptions = [(expand_braces(row[0]), expand_braces(row[1]))
                           for row in tables["who"]]
        self.outside = {row[0]: expand_braces(row[1]) for row in tables["from outside"]}
        if not self.order:
            self.fault(ROOMS_FILE, 1, "has no table of rooms")

    def place_of(self, name):
        """Where a file stands in the order: the index of the longest folder that it lies in."""
        fitting = [i for i, folder in enumerate(self.order) if lies_in(name, [folder])]
        return max(fitting, key=lambda i: len(self.order[i]), default=None)

    def may_use(self, user, used):
        """Whether what one file uses stands above it in the list, or is an exception."""
        mine, other = self.place_of(user), self.place_of(used)
        if mine is None or other is None:
            return False
        return other <= mine or self.is_exception(user, used)

    def is_exception(self, user, used):
        return any(lies_in(user, who) and lies_in(used, what) for who, what in self.exceptions)


def lies_in(name, folders):
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


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
    places = [folder, *(f"{library}/{part}" for library in SPLIT_LIBRARIES
                        for part in ("include", "internal", "src")),
              "kernels/include", "tools", "tests"]
    for place in places:
        if f"{place}/{path}" in house.outlines:
            return f"{place}/{path}"
    return None


def third_party(path):
    return next((name for pattern, name in THIRD_PARTY if pattern.match(path)), None)


def needs_torch(house, name, known):
    """Whether a header includes LibTorch, itself or through others of ours."""
    if name not in known:
        known[name] = False  # of a circle
        paths = [path for _, path in house.outlines[name].includes]
        known[name] = any(third_party(path) == "LibTorch" for path in paths) or any(
            needs_torch(house, inside, known) for path in paths
            if (inside := included_file(house, name, path)))
    return known[name]


def library_of(name):
    return name.split("/")[0]


def problem_of_include(house, name, path, known):
    """Why a file may not include one of ours, or None."""
    inside = included_file(house, name, path)
    if house.place_of(inside) is None:
        return f"{inside} lies in no room"
    if not house.may_use(name, inside):
        return f"{folder_of(house, inside)} stands below {folder_of(house, name)} in the list"
    is_inside_another = library_of(name) != library_of(inside) and "/src/" in inside
    if is_inside_another and not house.is_exception(name, inside):
        return "it is private to its library"
    if needs_torch(house, inside, known) and not lies_in(name, house.outside.get("LibTorch", [])):
        return "it needs LibTorch"
    return None


def folder_of(house, name):
    return house.order[house.place_of(name)]


def check_includes(house):
    known = {}
    for name in house.code:
        if name.startswith("tests/"):
            continue
        is_example = name.startswith("examples/")
        if house.place_of(name) is None and not is_example:
            house.fault(name, 1, f"lies in no room of {ROOMS_FILE}")
            continue
        for line, path in house.outlines[name].includes:
            if inside := included_file(house, name, path):
                problem = problem_of_include(house, name, path, known) if not is_example else \
                    None if "/include/" in inside else "it is not a public header"
            else:
                word = third_party(path)
                allowed = not word or lies_in(name, house.outside.get(word, []))
                problem = None if allowed else word
            if problem:
                house.fault(name, line, f"may not include {path} ({problem})")


def check_rooms(house):
    """The tables name what is there, and are short enough to be looked over."""
    folders = house.order + sum(house.outside.values(), [])
    for who, what in house.exceptions:
        folders += who + what
    for folder in sorted(set(folders)):
        if not (house.root / folder).exists():
            house.fault(ROOMS_FILE, 1, f"there is no {folder}")
    if len(house.rooms) > MAX_ROOMS:
        house.fault(ROOMS_FILE, 1, f"{len(house.rooms)} rooms, at most {MAX_ROOMS}")
    line_count = len(house.text(ROOMS_FILE).splitlines())
    if line_count > MAX_ROOMS_FILE_LINES:
        house.fault(ROOMS_FILE, 1, f"{line_count} lines, at most {MAX_ROOMS_FILE_LINES}")
    files = collections.Counter(house.place_of(name) for name in house.code)
    for place, count in files.items():
        if place is not None and count > MAX_FOLDER_FILES:
            house.fault(ROOMS_FILE, 1, f"{house.order[place]} has {count} files, at most "
                                       f"{MAX_FOLDER_FILES}: give its folders places of their own")


def check_libraries(house):
    """None of the libraries is most of them, and none outgrows its budget of lines."""
    owned = collections.Counter()
    for name in house.files:
        if name.split("/")[0] in MAX_LINES and name.endswith((*CPP, ".html", ".js", ".css")):
            owned[name.split("/")[0]] += len(house.text(name).splitlines())
    for folder, count in owned.items():
        if count > MAX_LINES[folder]:
            house.fault(folder, 1, f"{count} lines, at most {MAX_LINES[folder]}: MAX_LINES")
    public = sum(name.startswith(PUBLIC_HEADERS) for name in house.code)
    if public > MAX_PUBLIC_HEADERS:
        house.fault("libckpt/include", 1, f"{public} public headers in all libraries, at most "
                                          f"{MAX_PUBLIC_HEADERS}: internal/ is for the house")
    lines = collections.Counter({name: owned[name] for name in SPLIT_LIBRARIES if owned[name]})
    for library, count in lines.items():
        part = count / lines.total()
        if len(lines) == len(SPLIT_LIBRARIES) and part > MAX_PART_OF_A_LIBRARY:
            house.fault(library, 1, f"has {part:.0%} of the lines of {', '.join(lines)}, at most "
                                    f"{MAX_PART_OF_A_LIBRARY:.0%}")


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
                name.startswith(("docs/why/", "docs/formats/", "tests/cli/"))
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


CHECKS = (check_includes, check_rooms, check_libraries, check_sizes, check_functions, check_words,
          check_phrases, check_names, check_dead_files, check_links)


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

#!/usr/bin/env python3
"""Each C++ snippet of docs/api.md stands in a program of examples/, but for its indentation.

usage: api_page_test.py
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def lines_of(text):
    return "\n".join(line.strip() for line in text.splitlines())


def main():
    programs = [lines_of(path.read_text(encoding="utf-8"))
                for path in (ROOT / "examples").glob("*/main.cc")]
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```cpp\n(.*?)^```$", page, flags=re.M | re.S)
    for snippet in snippets:
        if not any(lines_of(snippet) in program for program in programs):
            sys.exit(f"docs/api.md: in no example:\n{snippet}")
    if len(snippets) < 5:
        sys.exit("docs/api.md: snippets are missing")


if __name__ == "__main__":
    main()

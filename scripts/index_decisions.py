#!/usr/bin/env python3
"""docs/decisions/README.md: a row for each page, from its title and its line "Status: ...".

usage: index_decisions.py [--update]     compares the index with the pages, or rewrites it
"""
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "decisions"
INDEX = FOLDER / "README.md"
INTRODUCTION = """\
# Decisions

Choices that others might have made differently: the question, the choice, the reasons, the price. A
page is not rewritten when the choice changes later; its status says which page replaced it, in
whole or in part. Numbers have gaps. `scripts/update_docs` writes this index.

| number | decision | status |
|---|---|---|
"""


def row(page):
    text = page.read_text(encoding="utf-8")
    title = re.match(r"# \d+[.:]? (.+)", text)
    status = re.search(r"^Status: (.+?)\.?$", text, re.MULTILINE)
    if not title:
        sys.exit(f"{page.name}: does not begin with a number and a title")
    return (f"| {page.name[:4]} | [{title[1].rstrip('.')}]({page.name}) | "
            f"{status[1] if status else 'in force'} |\n")


def main(arguments):
    index = INTRODUCTION + "".join(map(row, sorted(FOLDER.glob("[0-9]*.md"))))
    if arguments == ["--update"]:
        INDEX.write_text(index, encoding="utf-8")
    elif not INDEX.exists() or INDEX.read_text(encoding="utf-8") != index:
        sys.exit("docs/decisions/README.md is not the index of the pages: run scripts/update_docs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

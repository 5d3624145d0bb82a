#!/usr/bin/env python3
"""Puts what run_pairs.py found into pairs.jsonl, and says where it is not what ran before.

usage: collect_pairs.py FILE...
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

from read_reference import write

PAIRS = Path(__file__).with_name("pairs.jsonl")


def key_of(row: dict) -> str:
    flags = sorted(row["flags"].items())
    return json.dumps([row["tree"], row["set"], flags, row.get("files", [])])


def without_numbers(text: str | None) -> str:
    return re.sub(r"\d+|\[.*", "", text or "")


def told_otherwise(before: dict, now: dict) -> bool:
    if before["result"] != now["result"]:
        return True
    same = without_numbers(before.get("message")) == without_numbers(now.get("message"))
    return not same and "prints " not in before.get("message", "")


def main() -> int:
    rows = {key_of(row): row for row in map(json.loads, PAIRS.read_text().splitlines())}
    for file in sys.argv[1:]:
        for row in map(json.loads, Path(file).read_text().splitlines()):
            before = rows.get(key_of(row))
            if before and before["from"] != "run":
                row["from"] = "both"
                if told_otherwise(before, row):
                    print("before:", before, "\nnow:", row)
            rows[key_of(row)] = row
    kept = [{k: v for k, v in row.items() if k == "flags" or v not in (None, {}, [])}
            for row in rows.values()]
    write(PAIRS, kept)
    for (tree, result), count in sorted(Counter((r["tree"], r["result"]) for r in kept).items()):
        print(f"{tree:12} {result:18} {count}")
    otherwise = [r for r in kept if r["result"] == "equal" and r.get("next_step") != "equal"]
    print(len(kept), "pairs;", len(otherwise), "load equal and go on otherwise or are not stepped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

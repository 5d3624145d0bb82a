#!/usr/bin/env python3
"""Adds what each part of scripts/gpu_check came to to results.json, and writes the table.

usage: summary.py FOLDER       reads outcomes.tsv (part, exit code, seconds, remark), *.log
"""
import json
import sys
from pathlib import Path

FINDINGS = ("check", "golden", "memcheck", "synccheck", "initcheck", "racecheck")


def outcomes_of(folder):
    """The last outcome of each part, in order of the last run."""
    outcomes = {}
    for line in (folder / "outcomes.tsv").read_text().splitlines():
        part, code, seconds, remark = line.split("\t")
        outcomes.pop(part, None)
        outcomes[part] = {"exit": int(code) if code else None, "seconds": int(seconds),
                          "remark": remark}
    return outcomes


def text_of(outcome):
    if outcome["exit"] is None:
        return f"not run: {outcome['remark']}"
    said = "ok" if outcome["exit"] == 0 else f"FAILED (exit {outcome['exit']})"
    return f"{said}, {outcome['seconds']} s"


def main():
    folder = Path(sys.argv[1])
    outcomes = outcomes_of(folder)
    file = folder / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results["outcomes"] = outcomes
    machine = folder / "machine.txt"
    results["machine"] = machine.read_text().splitlines() if machine.exists() else []
    file.write_text(json.dumps(results, indent=2) + "\n")
    lines = list(results["machine"])
    for part, outcome in outcomes.items():
        lines.append(f"--- {part}: {text_of(outcome)}")
        log = folder / f"{part}.log"
        if outcome["exit"] is None or not log.exists():
            continue
        text = log.read_text(errors="replace").splitlines()
        lines += text[-1:] if part in FINDINGS and outcome["exit"] == 0 else text
    (folder / "table.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What ckpt-inspect can-load says of the pairs that Megatron itself ran, beside what came of them.

usage: replay.py BIN SETS [--show N] [--launch] [WORD...]

SETS has the recorded sets (../shared/fixtures/parallel/unpack, and what make_sets.py writes); pairs
of others are left out. --launch: what the run is told stands in a script. Prints a table of
verdicts, and up to N pairs whose verdict is another one. Exit code 1 where a "loads" is false, a
message is another one, or of another line, or, of all pairs, more than a tenth is not known.
"""
from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_pairs import OF_A_SAVE, damaged, with_flags  # noqa: E402

PAIRS = Path(__file__).resolve().parent / "pairs.jsonl"
RELEASES = {"april": "2026-04", "april_5077": "2026-04", "august": "2026-08",
            "core_0.15.3": "0.15", "core_0.16.1": "0.16", "core_0.17.1": "0.17",
            "core_0.18.2": "0.18", "core_0.19.0": "0.19"}


def outcome(pair: dict) -> str:
    """The verdict that Megatron's own run comes to."""
    if pair["result"] == "equal":
        return "next_step_differs" if pair.get("next_step") == "differs" else "continues"
    return {"refuses": "refuses", "loads_differently": "loads_wrong"}[pair["result"]]


def is_about_loading(pair: dict) -> bool:
    """Not about another path, and not about values, which verify reads."""
    is_elsewhere = any(name in pair["flags"] for name in ("load",))
    return not is_elsewhere and not any(" flip " in f" {file}" for file in pair.get("files", []))


def claimed(said: dict) -> str:
    """The verdict about what the pairs looked at: state, and a step from given gradients."""
    verdict, kinds = said["verdict"], {reason["of"] for reason in said.get("reasons", [])}
    if verdict != "next_step_differs":
        return verdict
    if "state" in kinds:  # it was told not to load it
        return "loads_wrong"
    return "next_step_differs" if "step" in kinds else "continues"


def message_text(message: str) -> str:
    """Without numbers, types and paths."""
    message = re.sub(r"'?CKPT[^' ]*'?", "PATH", message)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", message)


def is_same_message(said: str, real: str) -> bool:
    """One may be the front of the other: keys and shapes of a first tensor are not computed."""
    one, other = message_text(said), message_text(real)
    return bool(one) and (other.startswith(one[:280]) or one.startswith(other[:280]))


def script(recorded: dict, pair: dict) -> str:
    """The recorded command line with the pair's flags, in an array as scripts have it."""
    flags = {name: value for name, value in pair["flags"].items() if name != "world_size"}
    words = with_flags(recorded["argv"], OF_A_SAVE | flags) + ["--load", "ckpt"]
    world = pair["flags"].get("world_size", recorded["world"])
    return (f"#!/bin/bash\nWORLD={world}\nARGS=(\n  {shlex.join(words)}\n)\n"
            'torchrun --nproc-per-node $WORLD pretrain_gpt.py "${ARGS[@]}" 2>&1 | tee log\n')


def ask(binary: Path, checkpoint: Path, pair: dict, launch: Path | None) -> dict:
    words = [str(binary), "can-load", str(checkpoint), "--json",
             "--target-megatron", RELEASES[pair["tree"]]]
    if launch:
        words += ["--launch", str(launch)]
    else:
        for name, value in pair["flags"].items():
            text = json.dumps(value) if not isinstance(value, str) else value
            words += ["--arg", f"{name}={'None' if value is None else text}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout)
    if "error" in said:  # what cannot be read is refused, too
        return {"verdict": "refuses", "message": said["error"]["message"], "is_ours": True}
    return said


def judge(options, pair: dict) -> tuple[dict, str, str, dict]:
    checkpoint = options.sets / pair["set"] / "ckpt"
    with tempfile.TemporaryDirectory() as folder:
        launch = None
        if options.launch:
            recorded = json.loads((checkpoint.parent / "expected/run.json").read_text())
            launch = Path(folder) / "launch.sh"
            launch.write_text(script(recorded, pair))
        if pair.get("files"):
            checkpoint = damaged(checkpoint, Path(folder) / "ckpt", tuple(pair["files"]))
        said = ask(options.bin / "ckpt-inspect", checkpoint, pair, launch)
    return pair, outcome(pair), claimed(said), said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin", type=Path)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--launch", action="store_true")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    pairs = [pair for pair in pairs if is_about_loading(pair)
             and all(word in json.dumps(pair) for word in options.words)]
    count = len(pairs)
    pairs = [pair for pair in pairs if (options.sets / pair["set"]).is_dir()]
    if len(pairs) < count:
        print(f"{count - len(pairs)} pairs of sets that are not in {options.sets} are left out")
    with ThreadPoolExecutor(2) as pool:
        judged = list(pool.map(lambda pair: judge(options, pair), pairs))
    table = Counter((real, ours) for _, real, ours, _ in judged)
    for (real, ours), count in sorted(table.items()):
        print(f"{count:5}  Megatron: {real:18}  can-load: {ours}")
    wrong = [row for row in judged if row[1] != row[2] and row[2] != "not_known"]
    others = [row for row in judged if row[1] == row[2] == "refuses" and "is_ours" not in row[3]
              and not is_same_message(row[3]["message"], row[0]["message"])]
    moved = [row for row in judged if row[1] == row[2] == "refuses" and row[0]["from"] == "run"
             and row[0]["tree"] != "april_5077" and ":" in row[3].get("raised_at", "")
             and row[3]["raised_at"] != row[0].get("raised_at")]
    unknown = sum(ours == "not_known" for _, _, ours, _ in judged)
    for title, rows in (("another verdict", wrong), ("another message", others),
                        ("another place", moved)):
        print(f"{len(rows)} of {len(judged)}: {title}")
        for pair, real, ours, said in rows[:options.show]:
            print("  ", json.dumps(pair)[:400], "\n    ", real, "|", ours, "|",
                  json.dumps(said)[:300])
    print(f"{unknown} of {len(judged)}: not known")
    for why, count in Counter(said["message"] for *_, ours, said in judged
                              if ours == "not_known").most_common(options.show):
        print(f"  {count:4}  {why}")
    is_too_much = unknown > len(judged) / 10 and len(judged) == count
    return 1 if wrong or others or moved or is_too_much else 0


if __name__ == "__main__":
    sys.exit(main())

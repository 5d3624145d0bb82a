#!/usr/bin/env python3
"""Reshards recorded checkpoints and loads each result with a Megatron-LM tree; prints a table.

usage: reshard_and_load.py --sets DIR... --tree TREE --out FOLDER [--packages DIR]...
                           [--jobs layer_wise|zero1|august|releases|hybrid|native|groups|changed]
                           [--only WORD...]

Each row of the jobs goes to other sizes, another form of the optimizer's state, or the other
container. Every result is loaded twice: with model and sizes on the command line, and with those of
the checkpoint (--use-checkpoint-args). `state` and `next step` count the tensors that are not equal
bit for bit. --as-it-is loads the source itself at the target's sizes instead: what Megatron makes
of it without us.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import load_result
from jobs import JOBS, Job, step_from

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("SHARDWISE_BIN", HERE.parents[1] / "build/bin"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=Path, nargs="+", required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", choices=JOBS, default="layer_wise")
    parser.add_argument("--only", nargs="+", default=[""], help="jobs with one of it in their name")
    parser.add_argument("--as-it-is", action="store_true")
    arguments = parser.parse_args()
    arguments.sets = [folder.resolve() for folder in arguments.sets]
    arguments.out = arguments.out.resolve()
    return arguments


def find(sets: list[Path], name: str) -> Path:
    for folder in sets:
        if (folder / name / "ckpt").is_dir():
            return folder / name
    raise FileNotFoundError(f"no set is called {name}")


def make(job: Job, source: Path, out: Path) -> tuple[Path | None, str]:
    """The result, and what the program said where there is none."""
    log = []
    for words in job.commands(source / "ckpt", out):
        shutil.rmtree(words[2], ignore_errors=True)
        finished = subprocess.run(
            [str(BIN / words[0]), *words[1:]], capture_output=True, text=True, check=False)
        log += [" ".join(words), finished.stdout, finished.stderr]
        if finished.returncode:
            lines = finished.stderr.strip().splitlines() or ["(nothing printed)"]
            return None, f"exit {finished.returncode}: {lines[0]}"
    (out / f"{job.name}.log").write_text("\n".join(log))
    return out / job.name, ""


def load(arguments, job: Job, result: Path, from_checkpoint: bool) -> dict:
    expected = find(arguments.sets, job.expected or job.source)
    words = [str(result), "--set", str(expected), "--tree", str(arguments.tree)]
    words += ["--sizes", job.sizes, *job.run_options()]
    stepped = step_from(job.expected or job.source)
    if stepped and not (expected / "expected/next_state.safetensors").exists():
        words += ["--step-from", str(find(arguments.sets, stepped))]
    words += ["--checkpoint-args"] if from_checkpoint else []
    if load_result.uses_engine(load_result.recorded_run(expected)):
        return load_elsewhere(arguments, words)
    return load_result.load(load_result.parse_arguments(words))[0]


def load_elsewhere(arguments, words: list[str]) -> dict:
    """In a process of its own, for TransformerEngine's stand-ins change what is imported."""
    for packages in arguments.packages:
        words += ["--packages", str(packages)]
    program = [sys.executable, "-W", "ignore", str(HERE / "load_result.py")]
    finished = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
    try:
        return json.loads(finished.stdout)
    except json.JSONDecodeError:
        return {"failed": {"-": (finished.stderr.strip().splitlines() or [""])[-1]}}


def cells(found: dict) -> tuple[str, str]:
    """`state` and `next step` of a row."""
    if "state" not in found:
        return f"not loaded: {load_result.first_reason(found['failed'])[:160]}", ""
    state = f"{len(found['state'])} differ" if found["state"] else "equal"
    if "step" not in found:
        return state, f"failed: {load_result.first_reason(found.get('failed', {}))[:120]}"
    step = found.get("next_state")
    if step is None:
        return state, "taken"
    if "unequal" not in step:
        return state, "other tensors"
    if step["unequal"] == 0:
        return state, "equal"
    return state, f"{step['unequal']} of {step['tensors']} by {max(step['fp32'], step['half']):.1e}"


def random_numbers(found: dict) -> str:
    fresh = found.get("freshly_seeded", [])
    return "as a new start" if len(fresh) == 5 else "loaded" if "state" in found else ""


def row_of(arguments, job: Job) -> tuple[list[str], bool]:
    """The cells, and whether the state and the step are as recorded."""
    source = find(arguments.sets, job.source)
    if arguments.as_it_is:
        result, problem = source / "ckpt", ""
    else:
        result, problem = make(job, source, arguments.out)
    if result is None:
        return [job.source, job.target, "", problem, "", "", ""], False
    named = load(arguments, job, result, from_checkpoint=False)
    state, step = cells(named)
    stored = cells(load(arguments, job, result, from_checkpoint=True)) if (
        not arguments.as_it_is) else ()
    row = [f"`{job.source}`", job.target, str(named["processes"]), state, step,
           random_numbers(named), " / ".join(stored)]
    return row, state == "equal" and step in ("equal", "taken")


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    load_result.import_megatron(arguments.tree, arguments.packages, engine=False)
    print("| set | to | ranks | state | next step | random numbers | with checkpoint args |\n"
          "|---|---|---|---|---|---|---|", flush=True)
    code = 0
    for job in JOBS[arguments.jobs]:
        if any(word in job.name for word in arguments.only):
            row, is_right = row_of(arguments, job)
            print(f"| {' | '.join(row)} |", flush=True)
            code |= not is_right
    return code


if __name__ == "__main__":
    sys.exit(main())

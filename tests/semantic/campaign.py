"""Runs many generated cases: campaign.py KIND SEED COUNT [options]

Case i of a campaign has the seed SEED * 1,000,003 + i. Findings are printed, one JSON object a
line; the inputs of failures are kept. Exit 1 if there were any.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import torch

from session import Finding, Session

# The module that makes the cases of a kind, and the name of a case's input.
KINDS = {
    "state_dict": ("state_dict_cases", "source.pt"),
    "opcode": ("opcode_cases", "source.pt"),
    "dcp": ("dcp_cases", "source"),
    "folder": ("folder_cases", "source"),
    "megatron": ("megatron_cases", "source"),
}
SEED_STEP = 1_000_003
SEEDS = Path(__file__).with_name("seeds.jsonl")


@dataclass(frozen=True)
class Result:
    case: str
    findings: list[Finding]
    ended: list[str]


def run_case(kind: str, seed: int, keep: Path | None = None) -> Result:
    """Makes the case of a seed and checks everything that our programs make of it."""
    module, name = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="semantic-") as folder:
        source_folder, work = Path(folder) / "in", Path(folder) / "out"
        source_folder.mkdir()
        work.mkdir()
        session = Session(kind, seed, work, source_folder / name)
        try:
            importlib.import_module(module).run(session, random.Random(seed))
        except Exception as problem:
            session.report("the test itself works", f"{type(problem).__name__}: {problem}")
        if session.findings and keep is not None:
            shutil.copytree(source_folder, keep / f"{kind}_{seed}", dirs_exist_ok=True)
        return Result(session.case, session.findings, session.ended)


def start_worker() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def run_cases(
    kind: str, seeds: Iterable[int], keep: Path | None = None, workers: int | None = None
) -> Iterator[Result]:
    """In as many processes as there are cores; they inherit what is imported here."""
    importlib.import_module(KINDS[kind][0])
    count = workers or os.cpu_count()
    context = get_context("fork")
    with ProcessPoolExecutor(count, mp_context=context, initializer=start_worker) as pool:
        cases = [pool.submit(run_case, kind, seed, keep) for seed in seeds]
        try:
            for case in cases:
                yield case.result()
        finally:
            pool.shutdown(cancel_futures=True)


def kept_seeds(kind: str) -> list[int]:
    """Of cases that were wrong once: run first, for good."""
    rows = [json.loads(line) for line in SEEDS.read_text().splitlines()]
    return [row["seed"] for row in rows if row["kind"] == kind]


def campaign_seeds(seed: int, count: int) -> Iterator[int]:
    return (seed * SEED_STEP + number for number in range(count))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--keep", type=Path, help="copy the inputs of failures here")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start nothing after them")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rules: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    seeds = campaign_seeds(options.seed, options.count)
    end_s, done = time.monotonic() + 60 * options.minutes, 0
    for result in run_cases(options.kind, seeds, options.keep, options.workers):
        ended.update(result.ended)
        for finding in result.findings:
            rules[finding.rule] += 1
            print(finding.as_json(), flush=True)
        done += 1
        if time.monotonic() > end_s:
            break
    print(f"{options.kind} {options.seed}: {done} cases", dict(rules), file=sys.stderr)
    for command, times in sorted(ended.items()):
        print(f"{times:8d} {command}", file=sys.stderr)
    return 1 if rules else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Counts the bytes that each rank of a real load reads, with strace, beside what can-load says.

usage: count_reads.py --source TREE --packages DIR... --sets DIR --bin BIN [--hidden N] [CASE...]

Each case is a recorded set, made anew with larger matrices by the same command line, and the flags
of a load. Prints a row of JSON a rank: bytes of each file, bytes in all, and what can-load says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run.launch import in_ranks  # noqa: E402
from run_pairs import OF_A_SAVE, with_flags  # noqa: E402

CASES = {  # set, flags of the load
    "torch": ("par_do_adam_torch_tp2dp2", {}),
    "one rank's buckets for two": ("par_do_adam_dp_reshardable_dp4", {"world_size": 2}),
    "other sizes": ("par_do_adam_fully_reshardable_tp2dp2",
                    {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2,
                     "world_size": 2}),
    "fewer ranks": ("par_do_adam_fully_reshardable_dp4", {"world_size": 1}),
    "dealt": ("par_lw_muon_torch_dist_tp2dp2", {"world_size": 2}),
    "dealt files": ("par_lw_muon_torch_dp4", {}),
    "experts": ("par_do_adam_moe_fully_reshardable_ep2dp2", {"expert_model_parallel_size": 4}),
    "the model alone": ("par_do_adam_fully_reshardable_tp2dp2", {"no_load_optim": True}),
}
BEGUN = re.compile(r"^(\d+) +(?:read|pread64|readv)\(\d+<([^>]*)>")
ENDED = re.compile(r"^(\d+) .*= (\d+)$")  # on a line of its own, where threads take turns


def larger(hidden: int) -> dict:
    return {"hidden_size": hidden, "ffn_hidden_size": 3 * hidden, "vocab_size": 4 * hidden,
            "ddp_bucket_size": 4 * hidden * hidden}


class SameGradients:
    def gradient(self, step, name, shape):
        import torch

        return torch.full(shape, 2.0 ** -10)


def save_here(words: list[str]) -> None:
    from golden.run.training import Run

    running = Run(words)
    running.step(SameGradients(), 0)
    running.save(1)


def load_here(words: list[str], folder: Path) -> None:
    from golden.run.training import Run

    (folder / f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    Run(words)


def work(options: argparse.Namespace) -> None:
    """In a process of its own: saves or loads, as told in a file."""
    from golden.run.write_case import import_tree

    import_tree(options.source.resolve(), [p.resolve() for p in options.packages], False)
    told = json.loads(options.work.read_text())
    folder = options.work.parent
    os.chdir(folder)
    here = (lambda _: save_here(told["words"])) if told["saves"] else (
        lambda _: load_here(told["words"], folder))
    failed = in_ranks(told["world"], here, folder, timeout_s=300)
    if failed:
        sys.exit((folder / f"rank{failed[0]}.log").read_text(errors="replace")[-2000:])


def counted(trace: Path, checkpoint: Path) -> dict[int, dict[str, int]]:
    files: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    reading: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if found := BEGUN.match(line):
            reading[found[1]] = found[2]
        if (found := ENDED.match(line)) and found[1] in reading:
            path = reading.pop(found[1])
            if path.startswith(f"{checkpoint}/"):
                files[int(found[1])][path[len(str(checkpoint)) + 1:]] += int(found[2])
    return files


def run_case(options: argparse.Namespace, name: str) -> None:
    set_name, flags = CASES[name]
    run = json.loads((options.sets / set_name / "expected/run.json").read_text())
    size = larger(options.hidden)
    if "--ddp-bucket-size" not in run["argv"]:
        del size["ddp_bucket_size"]
    argv = with_flags(run["argv"], OF_A_SAVE | size)
    with tempfile.TemporaryDirectory(prefix="count_reads") as scratch:
        folder = Path(scratch).resolve()
        again = [sys.executable, __file__, "--source", options.source, "--packages",
                 *options.packages, "--work", folder / "told.json"]
        loads = {k: v for k, v in flags.items() if k != "world_size"}
        for saves, world, words, trace in (
                (True, run["world"], argv + ["--save", "ckpt", "--save-interval", "1"], []),
                (False, flags.get("world_size", run["world"]),
                 with_flags(argv, loads) + ["--load", str(folder / "ckpt")],
                 ["strace", "-f", "-y", "-e", "trace=read,pread64,readv", "-o",
                  folder / "trace"])):
            told = {"saves": saves, "world": world, "words": words}
            (folder / "told.json").write_text(json.dumps(told))
            subprocess.run([*trace, *again], check=True, stdout=subprocess.DEVNULL)
        files = counted(folder / "trace", folder / "ckpt")
        said = subprocess.run(
            [options.bin / "ckpt-inspect", "can-load", folder / "ckpt", "--json",
             "--target-megatron", "2026-04",
             *[w for k, v in flags.items() for w in ("--arg", f"{k}={v}")]],
            capture_output=True, text=True, check=False)
        if "ranks" not in json.loads(said.stdout):
            sys.exit(said.stdout)
        for rank in json.loads(said.stdout)["ranks"]:
            of_rank = files[int((folder / f"pid.{rank['rank']}").read_text())]
            total = sum(of_rank.values())
            print(json.dumps({"case": name, "set": set_name, "flags": flags,
                              "hidden": options.hidden, "rank": rank["rank"], "read": total,
                              "said": rank["read_bytes"],
                              "ratio": round(rank["read_bytes"] / total, 4), "files": of_rank},
                             separators=(",", ":")), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--packages", type=Path, nargs="+", default=[])
    parser.add_argument("--sets", type=Path)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", choices=CASES)
    options = parser.parse_args()
    if options.work:
        work(options)
        return 0
    for name in options.case or CASES:
        run_case(options, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

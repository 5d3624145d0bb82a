#!/usr/bin/env python3
"""Reshards recorded checkpoints and loads each result with a Megatron-LM tree; prints a table.

usage: reshard_and_load.py --sets DIR... --tree TREE --out FOLDER [--packages DIR]...
                           [--only WORD...]

Each row of JOBS goes to other sizes, or to the other container too. Every result is loaded twice:
with model and sizes on the command line, and with those of the checkpoint (--use-checkpoint-args).
`state` and `next step` count the tensors that are not equal bit for bit. --as-it-is loads the
source itself at the target's sizes instead: what Megatron makes of it without us.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("SHARDWISE_BIN", HERE.parents[1] / "build/bin"))


@dataclass(frozen=True)
class Job:
    source: str  # a set
    sizes: str  # of the result
    to: str = ""  # container, where it is another one
    expected: str = ""  # the set whose state it must have; the source if empty
    layout: str = ""  # of pipeline stages, where they are uneven

    @property
    def name(self) -> str:
        sizes = self.sizes.replace("=", "").replace(",", "")
        return f"{self.source}_to_{self.to}{sizes}{'uneven' if self.layout else ''}"

    def reshard_options(self) -> list[str]:
        words = []
        for part in self.sizes.split(","):
            name, number = part.split("=")
            words += [f"--{name}", number]
        return words + (["--pipeline-layout", self.layout] if self.layout else [])

    def run_options(self) -> list[str]:
        return [f"--options=--pipeline-model-parallel-layout {self.layout}"] if self.layout else []


LAYER_WISE = "par_lw_muon"
JOBS = (
    # Refused by Megatron, or loaded wrong: `torch`, any change.
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,dp=1"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_pp2vpp2dp2", "pp=2,vpp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2vpp2dp2", "pp=2,vpp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "pp=4,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,pp=4,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp3", "tp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_tp2pp2dp2", "tp=1,pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_llama_torch_tp2dp2", "tp=1,dp=2"),
    Job(f"{LAYER_WISE}_tied_torch_pp2dp2", "pp=2,dp=1"),
    Job(f"{LAYER_WISE}_tied_torch_pp2dp2", "pp=1,dp=1"),
    Job(f"{LAYER_WISE}_tied_torch_dp1", "pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=1,dp=1"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=4,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=1,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_dp1", "ep=2,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=2,tp=2,etp=1,dp=2"),
    Job(f"{LAYER_WISE}_moef_torch_ep2pp2dp2", "ep=4,pp=1,dp=4"),
    Job("par_adam_fp16_torch_tp2dp2", "tp=1,dp=2"),
    Job("par_adam_fp16_torch_dp2", "tp=2,pp=2,dp=1"),
    # torch_dist: EP 1 to and from EP > 1 is refused; the others Megatron loads by itself.
    Job(f"{LAYER_WISE}_moe_torch_dist_dp1", "ep=2,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=1,dp=1"),
    Job(f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=1,dp=4"),
    Job(f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=2,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=1,pp=2,vpp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,cp=2,dp=1"),
    Job(f"{LAYER_WISE}_moef_torch_dist_ep2dp2", "ep=2,pp=2,dp=2"),
    Job(f"{LAYER_WISE}_vpad_torch_dist_tp2dp2", "tp=1,dp=1",
        expected=f"{LAYER_WISE}_vpad_torch_dist_tp2dp2_to_dp1"),
    # The other container and other sizes at once.
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,pp=2,dp=2", to="torch_dist"),
    Job(f"{LAYER_WISE}_torch_dist_pp2vpp2dp2", "tp=2,pp=1,dp=1", to="torch"),
    Job(f"{LAYER_WISE}_moe_torch_dist_dp1", "ep=2,tp=2,etp=1,dp=2", to="torch"),
    # TransformerEngine's names, latent attention, token prediction, shared experts, all axes.
    Job("te_dense_fp8_torch_tp2dp2", "tp=1,pp=2,vpp=2,dp=1"),
    Job("te_grouped_fp8_torch_ep2tp2dp2", "ep=1,tp=1,etp=1,dp=1"),
    Job("te_grouped_torch_dist_dp1", "ep=4,dp=4"),
    Job("te_deep_torch_pp2", "pp=1,ep=2,tp=2,etp=1,dp=2"),
    Job("te_deep_torch_dist_pp2", "pp=1,ep=2,dp=4"),
    Job("axes_moe_torch_tp2dp2ep4etp1", "tp=1,pp=2,ep=2,etp=1,dp=2"),
    Job("axes_moe_torch_dp1", "pp=2,dp=1", layout="Et|tt|t|mL"),
    Job("axes_moe_torch_pp2vpp2ep2uneven", "pp=1,vpp=1,ep=1,dp=1"),
    Job("axes_tied_torch_pp3first1last3", "pp=2,vpp=3,dp=1"),
    Job("axes_moe_torch_dist_tp2pp2vpp2cp2dp2ep4etp1", "tp=1,pp=1,vpp=1,cp=1,ep=1,etp=1,dp=1"),
    Job("axes_moe_torch_dist_dp1", "tp=4,ep=2,etp=2,dp=2"),
)

# Sets that recorded the next step, for others of equal state that did not.
NEXT_STEPS = {
    f"{LAYER_WISE}_torch_dp4": r"par_lw_muon_torch_(dist_)?(tp\d|pp\d)",
    f"{LAYER_WISE}_moe_torch_ep2dp2": r"par_lw_muon_moe_torch_(dist_)?dp1$",
    f"{LAYER_WISE}_moef_torch_ep2dp2": r"par_lw_muon_moef_torch_(dist_)?ep2pp2dp2",
    "par_adam_fp16_torch_tp2dp2": r"par_adam_fp16_torch_(dist_)?dp2",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=Path, nargs="+", required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[""], help="jobs with one of it in their name")
    parser.add_argument("--as-it-is", action="store_true")
    return parser.parse_args()


def find(sets: list[Path], name: str) -> Path:
    for folder in sets:
        if (folder / name / "ckpt").is_dir():
            return folder / name
    raise FileNotFoundError(f"no set is called {name}")


def commands(job: Job, source: Path, out: Path) -> list[list[str]]:
    """The last one writes the result; a conversion to another container comes before it."""
    result, checkpoint, words = out / job.name, source / "ckpt", []
    if job.to:
        converted = out / f"{job.name}_converted"
        words.append(["ckpt-convert", str(checkpoint), str(converted), "--to", job.to])
        checkpoint = converted
    return [*words, ["reshard", str(checkpoint), str(result), *job.reshard_options()]]


def make(job: Job, source: Path, out: Path) -> tuple[Path | None, str]:
    """The result, and what the program said where there is none."""
    log = []
    for words in commands(job, source, out):
        shutil.rmtree(words[2], ignore_errors=True)
        finished = subprocess.run(
            [str(BIN / words[0]), *words[1:]], capture_output=True, text=True, check=False)
        log += [" ".join(words), finished.stdout, finished.stderr]
        if finished.returncode:
            lines = finished.stderr.strip().splitlines() or ["(nothing printed)"]
            return None, f"exit {finished.returncode}: {lines[0]}"
    (out / f"{job.name}.log").write_text("\n".join(log))
    return out / job.name, ""


def step_from(arguments, source: str) -> list[str]:
    if (find(arguments.sets, source) / "expected/next_state.safetensors").exists():
        return []
    return [word for name, pattern in NEXT_STEPS.items() if re.match(pattern, source)
            for word in ("--step-from", str(find(arguments.sets, name)))]


def load(arguments, job: Job, result: Path, from_checkpoint: bool) -> dict:
    expected = find(arguments.sets, job.expected or job.source)
    words = [sys.executable, "-W", "ignore", str(HERE / "load_result.py"), str(result)]
    words += ["--set", str(expected), "--tree", str(arguments.tree), "--sizes", job.sizes]
    for packages in arguments.packages:
        words += ["--packages", str(packages)]
    words += job.run_options() + step_from(arguments, job.expected or job.source)
    words += ["--checkpoint-args"] if from_checkpoint else []
    finished = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return json.loads(finished.stdout)
    except json.JSONDecodeError:
        return {"failed": {"-": (finished.stderr.strip().splitlines() or [""])[-1]}}


def cells(found: dict) -> tuple[str, str]:
    """`state` and `next step` of a row."""
    if "state" not in found:
        return f"not loaded: {next(iter(found['failed'].values()))[:160]}", ""
    state = f"{len(found['state'])} differ" if found["state"] else "equal"
    if "step" not in found:
        return state, f"failed: {next(iter(found.get('failed', {}).values()), '')[:120]}"
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


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("| set | to | processes | state | next step | random numbers | with checkpoint args |\n"
          "|---|---|---|---|---|---|---|", flush=True)
    code = 0
    for job in JOBS:
        if not any(word in job.name for word in arguments.only):
            continue
        source = find(arguments.sets, job.source)
        result, problem = make(job, source, arguments.out) if not arguments.as_it_is else (
            source / "ckpt", "")
        if result is None:
            print(f"| {job.source} | {job.to} {job.sizes} | | {problem} | | | |", flush=True)
            code = 1
            continue
        named = load(arguments, job, result, from_checkpoint=False)
        state, step = cells(named)
        stored = " / ".join(cells(load(arguments, job, result, from_checkpoint=True))
                            if not arguments.as_it_is else ())
        row = (job.source, f"{job.to} {job.sizes}".strip(), named.get("processes"), state, step,
               random_numbers(named), stored)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        code |= state != "equal" or step not in ("equal", "taken")
    return code


if __name__ == "__main__":
    sys.exit(main())

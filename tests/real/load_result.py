#!/usr/bin/env python3
"""Loads a checkpoint with a Megatron-LM tree, as a run that goes on would, and compares its state.

usage: load_result.py CHECKPOINT --set SET --tree TREE [--packages DIR]... [--sizes tp=2,pp=2,...]
                      [--checkpoint-args]

SET is the recorded set whose expected/state.safetensors the loaded state must equal bit for bit;
its command line is used with the sizes given (those of the set otherwise). Ranks are processes with
Gloo on this machine. Then one step is taken with the next gradients of SET's family; where SET has
expected/next_state.safetensors, it must give that. Prints one JSON object; exit 1 where something
differs, 3 where Megatron does not load the checkpoint.

With --checkpoint-args the sizes are taken from the checkpoint (--use-checkpoint-args
--use-mp-args-from-checkpoint-args). Nothing is skipped: random-number states and optimizer load.

Needs torch, safetensors, and on --packages what the tree imports (emerging_optimizers, einops, ...).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run.command_line import Sizes, with_sizes  # noqa: E402
from golden.run.launch import in_ranks  # noqa: E402

FROM_CHECKPOINT = ["--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="folder with the tracker file")
    parser.add_argument("--set", type=Path, required=True, dest="folder")
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--sizes", default="", help="tp=2,pp=2,vpp=2,cp=1,dp=2,ep=1,etp=1")
    parser.add_argument("--options", default="", help="further options of the run")
    parser.add_argument("--checkpoint-args", action="store_true")
    return parser.parse_args()


def sizes_of(text: str, recorded: dict) -> Sizes:
    given = {k: recorded.get(k) for k in ("tp", "pp", "vpp", "cp", "dp", "ep", "etp")}
    if text:
        given = {k: int(v) for k, v in (part.split("=") for part in text.split(","))}
    given = {k: v for k, v in given.items() if v is not None}
    return Sizes(name="loaded", **given)


def container_of(checkpoint: Path) -> str:
    iteration = int((checkpoint / "latest_checkpointed_iteration.txt").read_text())
    folder = checkpoint / f"iter_{iteration:07d}"
    return "torch_dist" if (folder / "metadata.json").exists() else "torch"


def command_line(arguments, run: dict, sizes: Sizes) -> list[str]:
    words = with_sizes(run["argv"], sizes)
    words += ["--ckpt-format", container_of(arguments.checkpoint)]
    words += ["--load", str(arguments.checkpoint), "--exit-on-missing-checkpoint"]
    words += arguments.options.split()
    return words + (FROM_CHECKPOINT if arguments.checkpoint_args else [])


def load_here(arguments, run: dict, words: list[str], outcome: Path) -> None:
    """One rank: load, compare, step, compare."""
    import torch.distributed as dist
    from golden.run.live_state import differences
    from golden.run.training import Run, StoredValues
    from safetensors.torch import load_file

    expected = arguments.folder / "expected"
    running = Run(words)
    state, _ = running.state()
    found = {"iteration": int(running.args.iteration)}
    if dist.get_rank() == 0:
        found["state"] = differences(load_file(expected / "state.safetensors"), state)
        outcome.write_text(json.dumps(found))
    grads = (expected / run["grads"]).resolve()
    if not grads.exists():
        grads = arguments.folder.parent / Path(run["grads"]).parent.name / "grads.safetensors"
    stepped = running.step(StoredValues(grads), run["iteration"])
    after, _ = running.state()
    if dist.get_rank() == 0:
        found["step"] = {"ok": stepped["ok"], "grad_norm": stepped["grad_norm"],
                         "recorded_grad_norm": (run.get("next_step") or {}).get("grad_norm")}
        recorded = expected / "next_state.safetensors"
        if recorded.exists():
            found["next_state"] = differences(load_file(recorded), after)
        outcome.write_text(json.dumps(found))


def last_words(logs: Path, rank: int) -> str:
    lines = (logs / f"rank{rank}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "(nothing printed)"


def load(arguments: argparse.Namespace) -> tuple[dict, int]:
    from golden.run.write_case import import_tree

    run = json.loads((arguments.folder / "expected/run.json").read_text())
    sizes = sizes_of(arguments.sizes, run["parallel"])
    words = command_line(arguments, run, sizes)
    engine = "transformer_engine" in words[words.index("--transformer-impl") + 1]
    import_tree(arguments.tree.resolve(), [p.resolve() for p in arguments.packages], engine)
    with tempfile.TemporaryDirectory(prefix="load_result") as scratch:
        outcome, logs = Path(scratch) / "outcome.json", Path(scratch) / "logs"
        os.chdir(scratch)
        failed = in_ranks(
            sizes.world, lambda _rank: load_here(arguments, run, words, outcome), logs)
        found = json.loads(outcome.read_text()) if outcome.exists() else {}
        if failed:
            found["failed"] = {rank: last_words(logs, rank) for rank in failed}
    found = {"checkpoint": str(arguments.checkpoint), "processes": sizes.world, **found}
    if failed:
        return found, 3
    return found, 1 if found["state"] or found.get("next_state") else 0


def main() -> int:
    arguments = parse_arguments()
    arguments.checkpoint = arguments.checkpoint.resolve()
    arguments.folder = arguments.folder.resolve()
    found, code = load(arguments)
    print(json.dumps(found, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())

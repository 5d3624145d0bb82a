#!/usr/bin/env python3
"""Loads a checkpoint with a Megatron-LM tree, as a run that goes on would, and compares its state.

usage: load_result.py CHECKPOINT --set SET --tree TREE [--packages DIR]...
                      [--sizes tp=2,pp=2,...] [--form FORM] [--checkpoint-args]

SET is the recorded set whose expected/state.safetensors the loaded state must equal, bit for bit;
its command line is used with the sizes given (those of the set otherwise). Ranks are processes with
Gloo on this machine. Then one step is taken with the next gradients of SET's family; where SET has
expected/next_state.safetensors, it must give that. Prints one JSON object; exit 1 where the state
differs, 3 where Megatron does not load the checkpoint. Gradients are clipped by the norm that the
set recorded, for ranks sum their own in another order; --own-norm uses it nevertheless. A step that
is not equal bit for bit prints by how much; above --step-tolerance the exit code is 1.

Where the set has bytes in TransformerEngine's extra states, `extra_states` says which modules got
those that the run recorded for that rank. `freshly_seeded` lists the random-number states that are,
on every rank, those of a new start.

--form says in which form the run would save the state of a DistributedOptimizer, where it is not
that of the set.

With --checkpoint-args the model and TP, PP and EP are taken from the checkpoint
(--use-checkpoint-args --use-mp-args-from-checkpoint-args). Nothing is skipped: optimizer and
random-number states load.

Needs torch and safetensors; on --packages what the tree imports (emerging_optimizers, einops ...).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run.command_line import Sizes, with_sizes, without  # noqa: E402
from golden.run.launch import in_ranks  # noqa: E402

FROM_CHECKPOINT = ["--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"]
# What these two take from the checkpoint; virtual stages, CP and ETP must be said again.
TAKEN = {
    "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1,
    "--expert-model-parallel-size": 1, "--num-layers": 1, "--hidden-size": 1,
    "--ffn-hidden-size": 1, "--num-attention-heads": 1, "--seq-length": 1,
    "--max-position-embeddings": 1, "--group-query-attention": 0, "--num-query-groups": 1,
    "--swiglu": 0, "--normalization": 1, "--untie-embeddings-and-output-weights": 0,
    "--num-experts": 1,
}


FORMS = {"fully_reshardable": ["--dist-ckpt-optim-fully-reshardable"], "dp_reshardable": [],
         "flat_file": [], "layer_wise": []}
OF_A_FORM = {"--dist-ckpt-optim-fully-reshardable": 0, "--no-ckpt-fully-parallel-save": 0,
             "--distrib-optim-fully-reshardable-mem-efficient": 0}


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="folder with the tracker file")
    parser.add_argument("--set", type=Path, required=True, dest="folder")
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--sizes", default="", help="tp=2,pp=2,vpp=2,cp=1,dp=2,ep=1,etp=1")
    parser.add_argument("--options", default="", help="further options of the run")
    parser.add_argument("--form", choices=FORMS, help="as the set's if not given")
    parser.add_argument("--checkpoint-args", action="store_true")
    parser.add_argument("--step-from", type=Path, metavar="SET",
                        help="a set of equal state that has next_state.safetensors")
    parser.add_argument("--own-norm", action="store_true")
    parser.add_argument("--step-tolerance", type=float, default=0.0,
                        help="of a tensor's largest element; bf16 and fp16: one unit beyond")
    arguments = parser.parse_args(words)
    for name in ("checkpoint", "folder", "tree", "step_from"):
        path = getattr(arguments, name)
        setattr(arguments, name, path and path.resolve())
    return arguments


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
    if arguments.form:
        words = without(words, OF_A_FORM) + FORMS[arguments.form]
    words += ["--ckpt-format", container_of(arguments.checkpoint)]
    words += ["--load", str(arguments.checkpoint), "--exit-on-missing-checkpoint"]
    words += arguments.options.split()
    return without(words, TAKEN) + FROM_CHECKPOINT if arguments.checkpoint_args else words


def random_states(running) -> dict:
    """Of this rank, as bytes or values that compare."""
    import random

    import numpy
    import torch
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    trackers = get_cuda_rng_tracker().get_states()
    return {"python": random.getstate(), "numpy": str(numpy.random.get_state()),
            "torch": torch.get_rng_state().tolist(), "cuda": torch.cuda.get_rng_state().tolist(),
            "trackers": {name: state.tolist() for name, state in sorted(trackers.items())}}


def freshly_seeded(running) -> list[str]:
    """Which random-number states of this rank are those that its start-up would give it."""
    from megatron.training.initialize import _set_random_seed

    loaded, args = random_states(running), running.args
    _set_random_seed(args.seed, args.data_parallel_random_init, args.te_rng_tracker,
                     args.inference_rng_tracker)
    fresh = random_states(running)
    return [name for name, state in loaded.items() if state == fresh[name]]


def extra_states(running) -> dict[str, list[str]]:
    """Of all ranks, by what became of them; names of a module once."""
    import torch.distributed as dist
    from golden.run.extra_states import compare_loaded

    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, compare_loaded(running.model))
    return {kind: sorted({name for found in everyone for name in found[kind]})
            for kind in ("equal", "other", "absent")}


def load_here(arguments, run: dict, words: list[str], outcome: Path) -> None:
    """One rank: load, compare, step, compare."""
    import torch.distributed as dist
    from golden.run.live_state import differences
    from golden.run.training import Run, StoredValues
    from safetensors.torch import load_file

    expected = arguments.folder / "expected"
    running = Run(words, run.get("kept_in_fp32", ""))
    running.label_modules()
    state, _ = running.state()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, freshly_seeded(running))
    found = {"iteration": int(running.args.iteration),
             "freshly_seeded": sorted(set.intersection(*map(set, everyone)))}
    if run.get("extra_state") == "fp8":
        found["extra_states"] = extra_states(running)
    if dist.get_rank() == 0:
        found["state"] = differences(load_file(expected / "state.safetensors"), state)
        outcome.write_text(json.dumps(found))
    grads = (expected / run["grads"]).resolve()
    if not grads.exists():
        grads = arguments.folder.parent / Path(run["grads"]).parent.name / "grads.safetensors"
    stepped_set = (arguments.step_from or arguments.folder) / "expected"
    recorded = json.loads((stepped_set / "run.json").read_text()).get("next_step") or {}
    norm = recorded.get("grad_norm")
    stepped = running.step(StoredValues(grads), run["iteration"],
                           None if arguments.own_norm else norm)
    after, _ = running.state()
    if dist.get_rank() == 0:
        found["step"] = {"ok": stepped["ok"], "grad_norm": stepped["grad_norm"],
                         "recorded_grad_norm": norm}
        recorded = stepped_set / "next_state.safetensors"
        if recorded.exists():
            found["next_state"] = step_differences(load_file(recorded), after)
        outcome.write_text(json.dumps(found))


def step_differences(expected: dict, found: dict) -> dict:
    """How many tensors are not equal bit for bit, and by how much of their largest element."""
    from golden.run.live_state import differences, same_bits

    if expected.keys() != found.keys():
        return {"tensors": len(expected), "other": differences(expected, found)[:10]}
    unequal, largest = 0, {"fp32": 0.0, "half": 0.0}
    for name, value in expected.items():
        if same_bits(value, found[name]):
            continue
        unequal += 1
        by = float((value.double() - found[name].double()).abs().max() / value.double().abs().max())
        kind = "fp32" if value.element_size() == 4 else "half"
        largest[kind] = max(largest[kind], by)
    return {"tensors": len(expected), "unequal": unequal, **largest}


def is_same_step(compared: dict | None, tolerance: float) -> bool:
    if compared is None or compared.get("unequal") == 0:
        return True
    return ("other" not in compared and compared["fp32"] <= tolerance
            and compared["half"] <= tolerance + 2.0**-8)


def last_words(logs: Path, rank: int) -> str:
    """Why a rank ended: what torch.load does not take, what Megatron says, or the exception."""
    text = (logs / f"rank{rank}.log").read_text(errors="replace")
    refused = re.search(r"Unsupported global: GLOBAL (\S+)", text)
    if refused:
        return f"torch.load (weights_only) refuses {refused[1]}"
    lines = text.strip().splitlines() or ["(nothing printed)"]
    says = re.search(r"could not load the checkpoint\n([^\n]+)", text)
    if says:
        return says[1]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised or lines)[-1]


def first_reason(failed: dict) -> str:
    """That of a rank whose own it is, and not that another one has gone."""
    own = [why for why in failed.values() if "onnection closed" not in why]
    return (own or list(failed.values()) or [""])[0]


def recorded_run(folder: Path) -> dict:
    return json.loads((folder / "expected/run.json").read_text())


def uses_engine(run: dict) -> bool:
    words = run["argv"]
    return "transformer_engine" in words[words.index("--transformer-impl") + 1]


def import_megatron(tree: Path, packages: list[Path], engine: bool) -> None:
    """Once, before ranks fork."""
    from golden.run.write_case import import_tree

    import_tree(tree.resolve(), [p.resolve() for p in packages], engine)


def load(arguments: argparse.Namespace) -> tuple[dict, int]:
    run = recorded_run(arguments.folder)
    sizes = sizes_of(arguments.sizes, run["parallel"])
    words = command_line(arguments, run, sizes)
    with tempfile.TemporaryDirectory(prefix="load_result") as scratch:
        outcome, logs = Path(scratch) / "outcome.json", Path(scratch) / "logs"
        os.chdir(scratch)
        failed = in_ranks(
            sizes.world, lambda _rank: load_here(arguments, run, words, outcome), logs)
        found = json.loads(outcome.read_text()) if outcome.exists() else {}
        if failed:
            found["failed"] = {rank: last_words(logs, rank) for rank in failed}
        os.chdir(Path(scratch).parent)
    found = {"checkpoint": str(arguments.checkpoint), "processes": sizes.world, **found}
    if failed:
        return found, 3
    same = not found["state"] and is_same_step(found.get("next_state"), arguments.step_tolerance)
    return found, 0 if same else 1


def main() -> int:
    arguments = parse_arguments()
    engine = uses_engine(recorded_run(arguments.folder))
    import_megatron(arguments.tree, arguments.packages, engine)
    found, code = load(arguments)
    print(json.dumps(found, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())

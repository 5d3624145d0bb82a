#!/usr/bin/env python3
"""Starts a Megatron-LM tree from an import of a Hugging Face folder, and takes a step.

usage: start_from_import.py CHECKPOINT --expected FILE.pt --tree TREE [--packages DIR]...
                            [--sizes tp=2,dp=2] [--options WORDS]

CHECKPOINT is what `ckpt-convert HF CHECKPOINT --to torch_dist|torch` wrote. Model and sizes are
those of its args (--use-checkpoint-args), beside WORDS; it is loaded with --finetune. Every
parameter that is loaded must have the bits of FILE.pt, Megatron-Bridge's state dict of the same
folder; then one step is taken with gradients that are made up, after which parameters must be
finite and others. Prints one JSON object; exit 1 where they are not, 3 where Megatron fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run.command_line import ALWAYS, Family, Sizes, without  # noqa: E402
from golden.run.launch import in_ranks  # noqa: E402
from load_result import import_megatron, last_words  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--expected", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--sizes", default="")
    parser.add_argument("--options", default="")
    arguments = parser.parse_args()
    arguments.checkpoint = arguments.checkpoint.resolve()
    arguments.expected = arguments.expected.resolve()
    return arguments


def command_line(arguments: argparse.Namespace, sizes: Sizes) -> list[str]:
    replaced = {"--optimizer": 1, "--muon-momentum": 1, "--muon-tp-mode": 1, "--bf16": 0,
                "--max-position-embeddings": 1, "--save": 1, "--save-interval": 1}
    words = without(list(ALWAYS), replaced)
    is_store = (arguments.checkpoint / "release/metadata.json").exists()
    return [*words, "--optimizer", "adam", "--use-checkpoint-args", "--finetune",
            "--global-batch-size", str(sizes.dp), "--load", str(arguments.checkpoint),
            "--ckpt-format", "torch_dist" if is_store else "torch",
            "--exit-on-missing-checkpoint", "--tensor-model-parallel-size", str(sizes.tp),
            *arguments.options.split()]


def start_here(arguments: argparse.Namespace, words: list[str], outcome: Path) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from golden.run.training import MadeUpValues, Run

    expected = torch.load(arguments.expected)
    running = Run(words)
    places = running.places() + running.buffers()
    found = {"parameters": len(places), "iteration": running.args.iteration, "different": []}
    before = {}
    for place, tensor in places:
        whole = expected.pop(place.name, None)
        if whole is not None and whole.shape != torch.Size(place.whole_shape):  # padded
            padded = torch.zeros(place.whole_shape, dtype=whole.dtype)
            padded[: len(whole)] = whole
            whole = padded
        before[place.name] = tensor.detach().clone()
        if whole is None or not torch.equal(place.cut(whole).to(tensor.dtype), tensor):
            found["different"].append(place.name)
    if dist.get_world_size() == 1:
        found["not loaded"] = sorted(expected)
    stepped = running.step(MadeUpValues(Family("import", 1, "")), 0)
    trained = running.places()
    found["step"] = {
        "ok": stepped["ok"], "grad_norm": stepped["grad_norm"],
        "finite": all(bool(tensor.isfinite().all()) for _, tensor in trained),
        "changed": sum(not torch.equal(before[place.name], tensor) for place, tensor in trained),
        "of": len(trained)}
    if dist.get_rank() == 0:
        outcome.write_text(json.dumps(found))


def main() -> int:
    arguments = parse_arguments()
    given = dict(part.split("=") for part in arguments.sizes.split(",") if part)
    sizes = Sizes(name="import", **{name: int(size) for name, size in given.items()})
    import_megatron(arguments.tree, arguments.packages, "local" not in arguments.options)
    words = command_line(arguments, sizes)
    with tempfile.TemporaryDirectory(prefix="start_from_import") as scratch:
        outcome, logs = Path(scratch) / "outcome.json", Path(scratch) / "logs"
        os.chdir(scratch)
        failed = in_ranks(sizes.world, lambda _: start_here(arguments, words, outcome), logs)
        os.chdir(Path(scratch).parent)
        found = json.loads(outcome.read_text()) if outcome.exists() else {}
        if failed:
            found["failed"] = {rank: last_words(logs, rank) for rank in failed}
    print(json.dumps({"checkpoint": arguments.checkpoint.name, **found}))
    if failed:
        return 3
    step = found["step"]
    is_sound = not found["different"] and not found.get("not loaded") and step["ok"]
    return 0 if is_sound and step["finite"] and step["changed"] == step["of"] else 1


if __name__ == "__main__":
    sys.exit(main())

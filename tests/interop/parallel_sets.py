"""Checkpoints that Megatron wrote at many parallel sizes, and what `reshard` makes of them.

SHARDWISE_PARALLEL: where ../shared/fixtures/parallel/unpack has put them; default: unpacked once
per run. SHARDWISE_LONG_TESTS: all pairs of parallel_pairs.md instead of a sample.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from comparing import bytes_of, first_difference
from parallel_pairs import SAMPLE, Pair, Set, Sizes, all_pairs
from programs import BIN, FIXTURES, Outcome, refuse, run, succeed

PACKED = FIXTURES / "parallel"
ARCHIVES = (
    "families", "layer_wise", "layer_wise_moe", "float16_optimizer", "zero1", "zero1_moe",
    "core_0.12_0.14", "august_2026",
)
IS_LONG = bool(os.environ.get("SHARDWISE_LONG_TESTS"))
needs_sets = pytest.mark.skipif(
    not BIN.is_dir() or not PACKED.is_dir(), reason=f"{BIN} or {PACKED} is not there"
)
SOUND, DAMAGED, USAGE, MALFORMED, UNSUPPORTED, NOT_FOUND = range(6)


def unpacked(folder: Path) -> Path:
    """The folder of all sets."""
    if "SHARDWISE_PARALLEL" in os.environ:
        return Path(os.environ["SHARDWISE_PARALLEL"])
    subprocess.run([PACKED / "unpack", folder, *ARCHIVES], check=True, timeout=600)
    return folder


def sampled(pairs: list[Pair]) -> list[Pair]:
    return pairs if IS_LONG else [pair for pair in pairs if pair.id in SAMPLE]


PAIRS = sampled(all_pairs())


def recorded_state(root: Path) -> dict[str, torch.Tensor]:
    """A set's expected state, which is of Megatron's live objects, under canonical names."""
    return load_canonical(root / "expected/state.safetensors")


@functools.cache
def load_canonical(path: Path) -> dict[str, torch.Tensor]:
    return {canonical_name(name): tensor for name, tensor in load_file(path).items()}


def canonical_name(recorded: str) -> str:
    kind, name = recorded.split(".", 1)
    if kind == "model":
        return name
    return f"optimizer.state.{'fp32_param' if kind == 'master' else kind}.{name}"


def state_differences(ours: dict, theirs: dict) -> list[str]:
    """Names, types, shapes and bits of two flat states, one line each."""
    found = [f"{name}: missing" for name in sorted(theirs.keys() - ours.keys())]
    found += [f"{name}: not expected" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(theirs.keys() & ours.keys()):
        mine, other = ours[name], theirs[name]
        if (mine.dtype, mine.shape) != (other.dtype, other.shape):
            found.append(f"{name}: {mine.dtype} {tuple(mine.shape)} | "
                         f"{other.dtype} {tuple(other.shape)}")
        elif bytes_of(mine) != bytes_of(other):
            found.append(f"{name}: {first_difference(mine, other)}")
    return found


def expect_none(differences: list[str]) -> None:
    if differences:
        pytest.fail(f"{len(differences)} differences, the first: {differences[0]}")


def check_logical_state(folder: Path, tmp_path: Path) -> None:
    check_state(folder / "ckpt", folder / "expected/state.safetensors", tmp_path)


def check_state(checkpoint: Path, live: Path, tmp_path: Path) -> None:
    """What --to safetensors gives of a set, against the live objects that were recorded."""
    made = tmp_path / "state.safetensors"
    succeed("ckpt-convert", checkpoint, made, "--to", "safetensors")
    expect_none(state_differences(load_file(made), load_canonical(live)))


@dataclass(frozen=True)
class Resharded:
    root: Path
    report: dict

    def says_not_carried(self, part: str) -> bool:
        """Whether the report lists something whose name has `part` in it."""
        return any(part in item["what"] for item in self.report["not_carried"])


class Reshards:
    """What `reshard` makes of the sets, each once per session."""

    def __init__(self, sets: Path, folder: Path):
        self.sets, self.folder = sets, folder
        self.made: dict[tuple, Resharded] = {}

    def root(self, source: Set) -> Path:
        return self.sets / source.name / "ckpt"

    def run(self, source: Path, *options: object) -> tuple[Path, Outcome]:
        destination = self.folder / f"{len(list(self.folder.iterdir())):04d}"
        return destination, run("reshard", source, destination, *options)

    def make(self, source: Path, sizes: Sizes, *options: str) -> Resharded:
        key = (source, sizes, options)
        if key not in self.made:
            root, outcome = self.run(source, *sizes.options, *options, "--json")
            if outcome.code != 0:
                pytest.fail(str(outcome))
            self.made[key] = Resharded(root, outcome.json())
        return self.made[key]

    def there(self, pair: Pair) -> Resharded:
        return self.make(self.root(pair.source), pair.sizes)

    def back(self, pair: Pair) -> Resharded:
        return self.make(self.there(pair).root, pair.source.sizes)


def refuse_reshard(codes: int | set[int], source: Path, made: Path, *options: object) -> str:
    """As programs.refuse(), of a `reshard` that leaves nothing behind."""
    line = refuse(codes, "reshard", source, made, *options)
    assert not made.exists()
    return line


def sizes_of_args(args: argparse.Namespace) -> Sizes:
    return Sizes(
        tp=args.tensor_model_parallel_size,
        pp=args.pipeline_model_parallel_size,
        vpp=args.virtual_pipeline_model_parallel_size or 1,
        cp=args.context_parallel_size,
        ep=args.expert_model_parallel_size,
        etp=args.expert_tensor_parallel_size,
        dp=args.data_parallel_size,
    )

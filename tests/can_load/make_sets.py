#!/usr/bin/env python3
"""Makes a recorded set again with another Megatron-LM tree: the same model, steps and sizes, filed
as that tree files them.

usage: make_sets.py --source FOLDER --packages DIR... --sets DIR --release WORD SET...

WORD becomes part of the names: v015 makes par_v015_do_adam_torch_dp2 of par_do_adam_torch_dp2. The
state must be that of SET, bit for bit; what is expected of it is copied from there. --one-bucket:
gradients are in one bucket, and the name says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from run_pairs import OF_A_SAVE, Sets, by_kind, state_of, with_flags
from golden.run.launch import in_ranks
from read_reference import NO_BUCKETS


def write_here(run: dict, words: list[str], expected: dict, out: Path) -> None:
    """One rank: weights, steps and the save of the recorded run. The checkpoint's args say --save
    as it is here: no folder of this machine."""
    import torch
    import torch.distributed as dist
    from golden.run.live_state import leaf_optimizers
    from golden.run.training import Run, StoredValues

    os.chdir(out)
    running, values = Run(words), StoredValues(Path(run["grads"]))
    with torch.no_grad():
        for place, tensor in running.places():
            tensor.copy_(place.cut(values.tensors[f"init.{place.name}"]))
    for leaf in leaf_optimizers(running.optimizer):
        leaf.reload_model_params()
    for number in range(run["iteration"]):
        running.step(values, number)
    running.save(run["iteration"])
    state, _ = state_of(running)
    if dist.get_rank() == 0:
        differing = by_kind(expected, state, run["model"]["vocab"])
        assert not differing, differing


def make(sets: Sets, name: str, release: str, one_bucket: bool) -> None:
    run = sets.run(name)
    made = name.replace("par_", f"par_{release}_", 1)
    if one_bucket:
        made = re.sub(r"_(?=[^_]*$)", "_one_bucket_", made)
        run["argv"] = with_flags(run["argv"], NO_BUCKETS)
    out = sets.folder / made
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    words = with_flags(run["argv"], OF_A_SAVE)
    words += ["--save", "ckpt", "--save-interval", "1"]
    with tempfile.TemporaryDirectory(prefix="make_sets") as scratch:
        expected = sets.expected(name)
        failed = in_ranks(run["world"], lambda _rank: write_here(run, words, expected, out),
                          Path(scratch))
        if failed:
            log = (Path(scratch) / f"rank{failed[0]}.log").read_text(errors="replace")
            shutil.rmtree(out)
            sys.exit(f"{made}: ranks {failed} failed\n{log[-2000:]}")
    shutil.copytree(sets.folder / name / "expected", out / "expected")
    recorded = json.loads((out / "expected/run.json").read_text())
    (out / "expected/run.json").unlink()
    recorded |= {"name": made, "argv": run["argv"]}
    (out / "expected/run.json").write_text(json.dumps(recorded, indent=1))
    print(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--packages", type=Path, nargs="+", default=[])
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--release", required=True)
    parser.add_argument("--one-bucket", action="store_true")
    parser.add_argument("names", nargs="+")
    words = parser.parse_args()
    from golden.run.write_case import import_tree

    import_tree(words.source.resolve(), [p.resolve() for p in words.packages], False)
    sets = Sets(words.sets.resolve(), Path(tempfile.gettempdir()))
    for name in words.names:
        make(sets, name, words.release, words.one_bucket)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Experts of a rank in one tensor of three dimensions (moe_single_grouped_weight).

An imitation by Megatron-LM's source of core 0.20-dev: TransformerEngine's GroupedTensor needs its
GPUs. A state dict has the experts stacked, torch_dist each by itself
(_split_grouped_checkpoint_tensor), an optimizer one parameter, whose state torch_dist cannot name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from damage import edit_args, edit_file
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

UNSUPPORTED = 4
RUNS = GOLDEN / "runs"
STORE, RANKS = (RUNS / f"te_grouped_fp8_{kind}_ep2tp2dp2/ckpt" for kind in ("torch_dist", "torch"))
EXPERT = re.compile(r"(.*\.mlp\.experts\.linear_fc[12]\.weight)(\d+)$")


def stacked(tree: dict) -> None:
    vars(tree["args"]).update(moe_single_grouped_weight=True)
    model, found = tree["model"], {}
    for name, value in list(model.items()):
        expert = EXPERT.match(name)
        found.setdefault(expert[1] if expert else name, []).append(value)
    model.clear()
    model.update((name, torch.stack(values) if len(values) > 1 else values[0])
                 for name, values in found.items())


def test_the_weights_of_a_store_are_carried_anywhere(copied, tmp_path: Path) -> None:
    root = copied(STORE)
    edit_args(moe_single_grouped_weight=True, moe_use_grouped_tensor=True)(root)
    for program, words in (("ckpt-convert", ("--to", "torch")),
                           ("reshard", ("--ep", 1, "--tp", 1, "--etp", 1))):
        made, expected = tmp_path / f"{program}.made", tmp_path / f"{program}.expected"
        succeed(program, root, made, *words, "--model-only")
        succeed(program, STORE, expected, *words, "--model-only")
        told = run("ckpt-inspect", "diff", made, expected).stdout
        assert "different: 0 of" in told, told


def test_an_optimizer_of_a_store_is_refused_by_name(copied, tmp_path: Path) -> None:
    root = copied(STORE)
    edit_args(moe_single_grouped_weight=True)(root)
    refusal = refuse(UNSUPPORTED, "reshard", root, tmp_path / "out", "--ep", 1,
                     "--etp", 1, "--tp", 1)
    assert "args.moe_single_grouped_weight" in refusal


def test_rank_files_are_refused_by_name_and_not_called_damaged(tmp_path: Path) -> None:
    shutil.copytree(RANKS, tmp_path / "in", copy_function=shutil.copyfile)
    for path in iteration_folder(tmp_path / "in").glob("mp_rank_*/model_optim_rng.pt"):
        edit_file(path, stacked)
    words = "experts of a rank in one tensor of three dimensions"
    for more in ((), ("--model-only",)):
        assert words in refuse(UNSUPPORTED, "ckpt-convert", tmp_path / "in", tmp_path / "out",
                               "--to", "torch_dist", *more)
    found = run("ckpt-inspect", "verify", tmp_path / "in")
    assert found.code == 0 and words in found.stdout, found

"""State of another iteration than its folder is named for: found, told, refused under --strict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import damage as bad
from programs import BIN, GOLDEN, run
from reading import iteration_folder, model_file

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DONE, DAMAGED, UNSUPPORTED = 0, 1, 4
TORCH = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
DIST = GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt"


def iteration_99(root: Path) -> None:
    common = iteration_folder(root) / "common.pt"
    path = common if common.exists() else model_file(root)
    bad.edit_file(path, lambda tree: tree.update(iteration=99))


def folder_7(root: Path) -> None:
    iteration_folder(root).rename(root / "iter_0000007")
    bad.tracker("7")(root)


@pytest.mark.parametrize("sample", [TORCH, DIST], ids=["torch", "torch_dist"])
@pytest.mark.parametrize(
    "damage, mention",
    [
        (iteration_99, "the state is from iteration 99, but the folder's name says 3"),
        (folder_7, "the state is from iteration 3, but the folder's name says 7"),
    ],
)
def test_another_iteration_than_the_folders_is_found(
    damage: Callable, mention: str, sample: Path, copied, tmp_path: Path
) -> None:
    root = copied(sample)
    damage(root)
    outcome = run("ckpt-inspect", "verify", root, "--json")
    assert outcome.code == DAMAGED
    found = [row for row in json.loads(outcome.stdout)["findings"] if row["problem"] == mention]
    (name,) = [Path(row["file"]).name for row in found]
    assert name == ("common.pt" if sample == DIST else "model_optim_rng.pt")
    for target in ("torch", "torch_dist"):
        made = tmp_path / target
        refused = run("ckpt-convert", root, made, "--to", target, "--strict")
        assert refused.code == UNSUPPORTED and mention in refused.stderr and not made.exists()
        warned = run("ckpt-convert", root, made, "--to", target)
        assert warned.code == DONE and f": {mention}" in warned.stderr
    resharded = run("reshard", root, tmp_path / "resharded", "--dp", "4")
    assert resharded.code == DONE and mention in resharded.stderr

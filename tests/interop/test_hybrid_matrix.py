"""Hybrid and linear-attention models at other sizes in every filing: the live state, which every
result has, and results that verify calls sound.

Sets of tests/golden/runs; with SHARDWISE_LONG_TESTS those of ../shared/fixtures/newer, too, and all
pairs instead of a sample.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from opened_checkpoint import opened
from parallel_sets import IS_LONG, expect_none, recorded_state, state_differences
from programs import BIN, FIXTURES, GOLDEN, refuse, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
NEWER = FIXTURES / "newer/sets.tar.zst"

MUON = ("--to torch", "--to torch_dist", "--to torch_dist --target-megatron 2026-08")
ADAM = ("--to torch --optimizer-sharding flat_file",
        *(f"--to torch_dist --optimizer-sharding {form}" for form in
          ("dp_reshardable --bucket-size 700", "fully_reshardable", "layer_wise")))
# Sets, the ways to file their optimizer, and whether the model has experts.
SETS = {
    "hybrid_torch_tp2dp2": (MUON, True),
    "hybrid_torch_dist_pp2": (MUON, True),
    "delta_torch_tp2dp2": (MUON, False),
    "zero1_hybrid_fully_reshardable_dp2": (ADAM, True),
}
OF_NEWER = {f"v019.{family}.zero1.{sizes}": (ADAM, True) for family in ("hyb", "q3n")
            for sizes in ("full.dp2", "full.tp2dp2", "torch.tp2dp2")}
OF_NEWER |= {f"v019.oss.zero1.{sizes}": (ADAM, True) for sizes in ("full.dp2", "torch.tp2etp1dp2")}
# TP, PP, VPP, DP; and with EP.
DENSE = ((1, 1, 1, 1), (1, 1, 1, 3), (2, 1, 1, 2), (1, 2, 1, 2), (2, 2, 1, 1), (1, 2, 2, 1))
EXPERTS = ((1, 1, 1, 4, 4), (2, 1, 1, 2, 2), (1, 2, 1, 2, 2))


AXES = ("tp", "pp", "vpp", "dp", "ep", "etp")


class Pair(NamedTuple):
    source: str
    form: str
    sizes: str


def all_pairs() -> list[Pair]:
    sets = SETS | (OF_NEWER if IS_LONG and NEWER.is_file() else {})
    pairs = []
    for name, (forms, has_experts) in sets.items():
        has_biases = ".oss." in name  # of experts, which need ETP 1
        layers = 2 if has_biases or name.startswith("delta") else 4
        sizes = [(*each, 1, 1 if has_biases else each[0]) for each in DENSE
                 if each[1] * each[2] <= layers]
        sizes += [(*each, 1) for each in EXPERTS if has_experts]
        options = [" ".join(f"--{axis} {size}" for axis, size in zip(AXES, each, strict=True))
                   for each in sizes]
        pairs += [Pair(name, form, each) for form in forms for each in options]
    return pairs


def sample() -> list[Pair]:
    """One size for each set and form."""
    picked, pairs = random.Random(41), all_pairs()
    kinds = sorted({(pair.source, pair.form) for pair in pairs})
    return [picked.choice([pair for pair in pairs if pair[:2] == kind]) for kind in kinds]


PAIRS = all_pairs() if IS_LONG else sample()


class Results:
    """Each conversion once."""

    def __init__(self, newer: Path, folder: Path):
        self.newer, self.folder = newer, folder
        self.made: dict[Pair, Path | str] = {}
        self.tensors: dict[Path, dict] = {}

    def set_of(self, pair: Pair) -> Path:
        return (self.newer if pair.source in OF_NEWER else GOLDEN / "runs") / pair.source

    def make(self, pair: Pair) -> Path:
        """Where Megatron stores no such grid, by what is said of it."""
        if pair not in self.made:
            made = self.folder / f"{len(self.made):04d}"
            options = f"{pair.form} {pair.sizes}".split()
            outcome = run("ckpt-convert", self.set_of(pair) / "ckpt", made, *options)
            if outcome.code == 4 and "cannot store this grid" in outcome.stderr:
                self.made[pair] = "Megatron cannot store this grid"
            else:
                assert outcome.code == 0, outcome
                self.made[pair] = made
        if isinstance(self.made[pair], str):
            pytest.skip(self.made[pair])
        return self.made[pair]

    def logical(self, root: Path) -> dict:
        if root not in self.tensors:
            document = succeed("ckpt-inspect", "hash", root, "--logical", "--json").json()
            self.tensors[root] = {t["key"]: (t["shape"], t["sha256"]) for t in document["tensors"]}
        return self.tensors[root]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    newer = tmp_path_factory.mktemp("newer")
    if IS_LONG and NEWER.is_file():
        plain = subprocess.run(["zstd", "-dcq", "--long=27", NEWER], check=True,
                               capture_output=True).stdout
        subprocess.run(["tar", "-C", newer, "-xf", "-"], input=plain, check=True)
    return Results(newer, tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("name", [*SETS, *(OF_NEWER if IS_LONG else ())])
def test_a_set_is_read_as_it_lived(name: str, results: Results, tmp_path: Path) -> None:
    folder = results.set_of(Pair(name, "", ""))
    state = tmp_path / "state.safetensors"
    succeed("ckpt-convert", folder / "ckpt", state, "--to", "safetensors")
    expect_none(state_differences(load_file(state), recorded_state(folder)))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " ".join(pair).replace("--", ""))
def test_every_tensor_survives(pair: Pair, results: Results) -> None:
    made, source = results.make(pair), results.set_of(pair) / "ckpt"
    assert results.logical(made) == results.logical(source)
    code, document = verify(made)
    assert (code, document["sound"]) == (0, True), document["findings"]


APART = GOLDEN / "runs/adam_hybrid_torch_dist_ep2dp2"


@pytest.mark.parametrize("sizes", ["--ep 4 --dp 4", "--tp 2 --etp 1 --dp 2", "--pp 2 --dp 2"])
def test_experts_keep_an_optimizer_of_their_own(sizes: str, tmp_path: Path) -> None:
    succeed("reshard", APART / "ckpt", tmp_path / "made", *sizes.split())
    assert verify(tmp_path / "made")[0] == 0
    state = tmp_path / "state.safetensors"
    succeed("ckpt-convert", tmp_path / "made", state, "--to", "safetensors")
    expect_none(state_differences(load_file(state), recorded_state(APART)))


@pytest.mark.parametrize("options", ["--to torch_dist --ep 1 --dp 1", "--to torch"])
def test_experts_do_not_lose_an_optimizer_of_their_own(options: str, tmp_path: Path) -> None:
    said = refuse(4, "ckpt-convert", APART / "ckpt", tmp_path / "made", *options.split())
    assert "have an optimizer of their own where no optimizer is sharded" in said


def test_groups_that_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    """As Megatron does: two groups of Mamba on four ranks, whose rows four ranks could share."""
    source = GOLDEN / "runs/hybrid_torch_tp2dp2/ckpt"
    said = refuse(2, "reshard", source, tmp_path / "made", "--tp", "4", "--etp", "1")
    assert "segment 'B' is of 2 heads or groups (mamba_num_groups)" in said


def test_flat_buffers_are_not_written_in_the_order_of_another_release(tmp_path: Path) -> None:
    source = GOLDEN / "runs/zero1_hybrid_fully_reshardable_dp2/ckpt"
    made = (source, tmp_path / "made", "--to", "torch_dist", "--target-megatron", "0.19")
    said = refuse(4, "ckpt-convert", *made, "--optimizer-sharding", "dp_reshardable")
    assert "mixer.conv1d.weight': core 0.19 registers it under another name" in said
    succeed("ckpt-convert", *made, "--optimizer-sharding", "fully_reshardable", "--verify")


OF_SEGMENTS = "not those of the segments that args describe"


@pytest.mark.parametrize(("argument", "value"), [
    ("mamba_state_dim", 4), ("mamba_head_dim", 8), ("mamba_num_groups", 4),
    ("mamba_num_heads", 8)])
def test_args_of_another_model_are_refused_and_found(
    argument: str, value: int, tmp_path: Path
) -> None:
    """Rank files tell only the sum of rows; a store tells each segment's."""
    files = changed("hybrid_torch_tp2dp2", tmp_path / "files", argument, value)
    assert OF_SEGMENTS in refuse(4, "reshard", files, tmp_path / "made", "--tp", "1")
    store = changed("hybrid_torch_dist_pp2", tmp_path / "store", argument, value)
    code, document = verify(store)
    assert code == 1
    (finding,) = document["findings"]
    assert finding["key"].startswith("args.mamba_")
    assert argument in finding["key"] + finding["problem"]


def changed(name: str, folder: Path, argument: str, value: object) -> Path:
    root = Path(shutil.copytree(GOLDEN / "runs" / name / "ckpt", folder))
    checkpoint = opened(root)
    for common in checkpoint.commons():
        vars(common["args"])[argument] = value
    checkpoint.save()
    return root


def test_a_pattern_of_other_layers_is_found(tmp_path: Path) -> None:
    root = changed("hybrid_torch_dist_pp2", tmp_path / "store", "hybrid_layer_pattern", "M*ME")
    code, document = verify(root)
    assert code == 1
    (finding,) = document["findings"]
    assert finding["key"] == "args.hybrid_layer_pattern"
    assert "makes layer 2 one of kind 'M'" in finding["problem"]

"""Sparse attention of DeepSeek-V3.2, one layer for several depths of token prediction, gradients
summed in float32 beside bf16 ones, and a model in float32, under ZeRO-1.

tests/golden/newer_models.tar.xz: runs of Megatron-LM d98e8a64dd; CHANGED_TABLE of
scripts/golden/run.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from damage import edit_file
from parallel_sets import DAMAGED, SOUND, check_state, expect_none
from parallel_twins import NAMES_OF_MODULES, Twins
from programs import BIN, GOLDEN, damage_of, logical_digest, refuse, run, succeed, verify
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

NAMES = ("dsa_torch_dp2", "dsa_torch_tp2dp2", "dsa_dp_reshardable_dp2",
         "dsa_fully_reshardable_tp2dp2", "dsa_shared_torch_dp2", "repeated_torch_dp2",
         "repeated_fully_reshardable_pp2", "local_sums_torch_dp2", "local_sums_dp_reshardable_dp2",
         "float32_torch_dp2", "float32_dp_reshardable_dp2", "float32_fully_reshardable_tp2dp2")
OF_RANKS = NAMES_OF_MODULES | {"/rng_state", "/rerun_state_machine", "/args/@sequence_parallel"}
# Of TransformerEngine's attention, which torch_dist leaves out.
REGENERATED = re.compile(r"core_attention\._extra_state: type NoneType \| Tensor")
FULLY = ("--to", "torch_dist", "--optimizer-sharding", "fully_reshardable", "--target-megatron",
         "2026-08")
BUCKETS = ("--to", "torch_dist", "--optimizer-sharding", "dp_reshardable", "--target-megatron",
           "2026-08")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newer")
    subprocess.run(["tar", "-xJf", GOLDEN / "newer_models.tar.xz", "-C", folder], check=True)
    return folder


def test_sgd_is_not_written_where_megatron_does_not_load_it(runs: Path, tmp_path: Path) -> None:
    """Of both, with the words that can-load has of Megatron's own."""
    stored = runs / "sgd_torch_dist_dp2"
    outcome = run("ckpt-inspect", "can-load", stored, "--target-megatron", "2026-08", "--json")
    said = json.loads(outcome.stdout)["message"]
    assert outcome.code == 1 and "'NoneType' object is not callable" in said
    for name in ("sgd_torch_dp2", "sgd_torch_dist_dp2"):
        words = (runs / name, tmp_path / "out", "--to", "torch_dist")
        assert said in run("ckpt-convert", *words).stderr
        assert "does not load" in refuse(4, "ckpt-convert", *words)
        succeed("ckpt-convert", *words[:1], tmp_path / name, *words[2:], "--model-only")
    succeed("ckpt-convert", stored, tmp_path / "torch", "--to", "torch")
    told = Twins(tmp_path / "torch", runs / "sgd_torch_dp2", with_attributes=False,
                 ignored=OF_RANKS).differences()
    expect_none(told)


def family_of(name: str) -> str:
    return name.split("_torch")[0].split("_dp_")[0].split("_fully")[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_that_of_the_run(name: str, runs: Path, tmp_path: Path) -> None:
    check_state(runs / name, runs / f"{family_of(name)}.safetensors", tmp_path)
    code, document = verify(runs / name)
    assert (code, document["not_checked"], document["not_proven"]) == (SOUND, [], [])


@pytest.mark.parametrize(("name", "other", "words"), [
    ("dsa_torch_dp2", "dsa_fully_reshardable_tp2dp2", (*FULLY, "--tp", 2, "--dp", 2)),
    ("dsa_dp_reshardable_dp2", "dsa_fully_reshardable_tp2dp2", (*FULLY, "--tp", 2, "--dp", 2)),
    ("dsa_fully_reshardable_tp2dp2", "dsa_torch_dp2", ("--to", "torch", "--tp", 1, "--dp", 2)),
    ("dsa_torch_dp2", "dsa_torch_tp2dp2", ("--to", "torch", "--tp", 2, "--dp", 2)),
    ("repeated_torch_dp2", "repeated_fully_reshardable_pp2", (*FULLY, "--pp", 2, "--dp", 1)),
    ("repeated_fully_reshardable_pp2", "repeated_torch_dp2",
     ("--to", "torch", "--pp", 1, "--dp", 2)),
    ("local_sums_torch_dp2", "local_sums_dp_reshardable_dp2", BUCKETS),
    ("float32_torch_dp2", "float32_fully_reshardable_tp2dp2", (*FULLY, "--tp", 2, "--dp", 2)),
    ("float32_dp_reshardable_dp2", "float32_fully_reshardable_tp2dp2",
     (*FULLY, "--tp", 2, "--dp", 2)),
])
def test_other_sizes_and_forms_are_what_megatron_writes(
    name: str, other: str, words: tuple, runs: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    succeed("ckpt-convert", runs / name, made, *words)
    assert logical_digest(made) == logical_digest(runs / name) == logical_digest(runs / other)
    told = Twins(made, runs / other, with_attributes=False, ignored=OF_RANKS,
                 without_keys=("rerun_state_machine", "rng_state/")).differences()
    expect_none([line for line in told if not REGENERATED.search(line)])


def test_layers_that_share_an_indexer_are_not_stacked(runs: Path, tmp_path: Path) -> None:
    """Megatron cannot save them in torch_dist."""
    source = runs / "dsa_shared_torch_dp2"
    assert "2 of the 4 layers have it" in refuse(
        4, "ckpt-convert", source, tmp_path / "out", "--to", "torch_dist")
    succeed("reshard", source, tmp_path / "made", "--tp", 2, "--dp", 1)
    assert logical_digest(tmp_path / "made") == logical_digest(source)


@pytest.mark.parametrize("words", [("--to", "torch"), BUCKETS[:4]], ids=("torch", "buckets"))
def test_float32_forms_that_megatron_does_not_load_are_refused(
    words: tuple, runs: Path, tmp_path: Path
) -> None:
    """Tried with core 0.16.1, 0.18.0, 0.19.0 and d98e8a64dd."""
    for name in ("float32_fully_reshardable_tp2dp2", "float32_dp_reshardable_dp2"):
        text = refuse(4, "ckpt-convert", runs / name, tmp_path / "out", *words)
        assert "is float32, which Megatron saves in flat buffers" in text
    text = refuse(4, "ckpt-convert", runs / "float32_torch_dp2", tmp_path / "out", *words[:2],
                  "--optimizer-sharding", "layer_wise")
    assert "how a run without a DistributedOptimizer files that is not known" in text


def test_a_master_that_is_no_copy_of_its_float32_weight_is_damage(
    runs: Path, tmp_path: Path
) -> None:
    root = tmp_path / "ckpt"
    subprocess.run(["cp", "-r", runs / "float32_torch_dp2", root], check=True)

    def change(model: dict) -> None:
        model["model"]["decoder.final_layernorm.weight"][3] += 2e-7

    edit_file(iteration_folder(root) / "mp_rank_00/model_optim_rng.pt", change)
    assert verify(root)[0] == DAMAGED
    assert "does not round to the model's weight 'decoder.final_layernorm.weight'" in refuse(
        3, "ckpt-convert", root, tmp_path / "out", *FULLY)


def test_a_lost_part_of_an_indexer_is_damage(runs: Path, tmp_path: Path) -> None:
    """Of one layer, while others have it: gone from model and optimizer alike it is no gap."""
    lost = "decoder.layers.0.self_attention.core_attention.indexer.k_norm.bias"
    root = tmp_path / "ckpt"
    subprocess.run(["cp", "-r", runs / "dsa_shared_torch_dp2", root], check=True)
    (iteration_folder(root) / "mp_rank_00/distrib_optim.pt").unlink()

    def change(tree: dict) -> None:
        tree["model"].pop(lost)
        del tree["optimizer"]
        tree["args"].use_distributed_optimizer = False

    edit_file(iteration_folder(root) / "mp_rank_00/model_optim_rng.pt", change)
    code, document = verify(root)
    assert code == DAMAGED and any(lost in problem for problem in damage_of(document))

"""`ckpt-inspect verify` on checkpoints that Megatron-Core wrote in every parallel layout: it raises
nothing on sound ones, and finds those that Megatron's own faults damaged.

SHARDWISE_PARALLEL: where ../shared/fixtures/parallel/unpack has put them; default: unpacked once
per run. A few of each form; all where SHARDWISE_LONG_TESTS is set.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from damage import edit_file
from programs import BIN, FIXTURES, run, verify
from reading import iteration_folder

PACKED = FIXTURES / "parallel"
pytestmark = pytest.mark.skipif(
    not BIN.is_dir() or not PACKED.is_dir(), reason=f"{BIN} or {PACKED} is not there"
)

IS_LONG = bool(os.environ.get("SHARDWISE_LONG_TESTS"))
ARCHIVES = () if IS_LONG else ("zero1", "layer_wise", "layer_wise_moe", "core_0.12_0.14")
SHIFTED = ("differ from the rounded fp32 master", "too far back in their buffers")
DAMAGED = {
    "par_do_adam_fully_reshardable_fault5077_dp4": SHIFTED,
    "par_do_adam_fully_reshardable_fault5077_pp2dp2": SHIFTED,
    "par_do_adam_fully_reshardable_fault5077_tp2dp2": SHIFTED,
    "par_lw_muon_torch_cp2dp2": ("context-parallel ranks overwrote each other's file",),
}
SAMPLES = (
    "par_do_adam_dp_reshardable_tp2pp2dp2",
    "par_do_adam_fully_reshardable_tp2pp2dp2",
    "par_do_adam_torch_tp2pp2dp2",
    "par_lw_muon_torch_dist_tp2pp2dp2",
    "par_lw_muon_torch_tp2pp2dp2",
    "par_lw_muon_torch_pp2vpp2dp2",
    "par_lw_muon_tied_torch_pp2dp2",
    "par_lw_muon_moe_torch_ep2tp2dp2",
    "par_lw_muon_moef_torch_ep2pp2dp2",
    "par_lw_muon_moe_torch_dist_ep2pp2dp2",
    "par_v012_do_adam_dp_zero_tp2dp2",
    "par_v012_do_adam_fully_sharded_tp2pp2dp2",
    "par_v012_do_adam_torch_tp2dp2",
    *DAMAGED,
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "SHARDWISE_PARALLEL" in os.environ:
        return Path(os.environ["SHARDWISE_PARALLEL"])
    folder = tmp_path_factory.mktemp("parallel")
    subprocess.run([PACKED / "unpack", folder, *ARCHIVES], check=True, timeout=600)
    return folder


def test_ranks_hold_what_is_computed_of_their_layout(sets: Path, tmp_path: Path):
    distil = Path(__file__).parents[1] / "golden/parallel/distil.py"
    subprocess.run([sys.executable, distil, sets, tmp_path], check=True, timeout=300)
    assert len(list(tmp_path.glob("*.json"))) >= len(SAMPLES) - 1  # one has no ranks.json
    outcome = subprocess.run(
        [BIN / "layout_test", "--run_test=recorded_ranks_of_megatron"],
        env=os.environ | {"SHARDWISE_RECORDED_RANKS": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )
    assert outcome.returncode == 0, outcome.stdout[-4000:]


def problems(document: dict) -> list[str]:
    return [found["problem"] for found in document["findings"] if found["severity"] == "damage"]


def check(path: Path) -> None:
    code, document = verify(path / "ckpt")
    assert code == (1 if path.name in DAMAGED else 0), (path.name, problems(document))
    for problem in problems(document):
        assert any(part in problem for part in DAMAGED[path.name])
    compared = document["checked"]["masters"] > 0
    left = document["not_checked"]
    assert compared or left, path.name  # what was not compared is said
    for file in document["files"]:
        assert sum(file["labels"].values()) == file["bytes"], file


@pytest.mark.parametrize("name", SAMPLES)
def test_a_few_sets_of_each_form(name: str, sets: Path) -> None:
    check(sets / name)


@pytest.mark.skipif(not IS_LONG, reason="SHARDWISE_LONG_TESTS is not set")
def test_all_sets(sets: Path) -> None:
    folders = sorted(path for path in sets.glob("par_*") if path.is_dir())
    assert len(folders) > 170
    for folder in folders:
        check(folder)


@pytest.mark.parametrize(
    "name", ["par_do_adam_fully_reshardable_tp2pp2dp2", "par_lw_muon_moe_torch_dist_ep2pp2dp2"]
)
def test_masters_with_names_are_compared_in_every_layout(name: str, sets: Path) -> None:
    document = verify(sets / name / "ckpt")[1]
    assert document["checked"]["masters"] > 20
    assert not any("master" in left["what"] for left in document["not_checked"])


@pytest.mark.parametrize("name", [name for name in SAMPLES if "cp2" not in name])
def test_the_page_counts_the_parameters_that_megatron_had(sets: Path, name: str) -> None:
    with safe_open(sets / name / "expected/state.safetensors", "pt") as state:
        keys = [key for key in state.keys() if key.startswith("model.")]
        expected = sum(math.prod(state.get_slice(key).get_shape()) for key in keys)
    document = json.loads(run("ckpt-inspect", sets / name / "ckpt", "--json").stdout)
    assert document["parameters"] == expected > 0
    assert document["status"]["health"] == "complete"


@pytest.mark.parametrize(("field", "value"),
                         (("scale", torch.tensor([8.0])), ("growth_tracker", 3)))
def test_a_loss_scale_that_ranks_do_not_share(field: str, value: object, sets: Path,
                                              tmp_path: Path):
    root = shutil.copytree(sets / "par_do_adam_fp16_torch_tp2dp2/ckpt", tmp_path / "ckpt",
                           copy_function=shutil.copyfile)
    edit_file(iteration_folder(root) / "mp_rank_01/model_optim_rng.pt",
              lambda state: state["optimizer"]["grad_scaler"].update({field: value}))
    code, document = verify(root)
    assert code == 1
    assert any(finding["key"] == f"/optimizer/grad_scaler/{field}" and
               "differs from that of" in finding["problem"] for finding in document["findings"])

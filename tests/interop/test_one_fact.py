"""One fact of a checkpoint changed at a time, in sets of every layout: nothing ends with exit code
0 and a difference that it does not list.

Either `verify` says so, and conversions end with 3 or 4, or the changed fact arrives: `diff` and a
second reader find the result equal to what was changed (one_fact_judge.py). Whether equal shapes
were exchanged everywhere can't be told: that is another checkpoint, which is carried.

SHARDWISE_LONG_TESTS: all mutators on all sets, else some of them on each of twelve.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from damage import edit_file
from one_fact import MUTATORS, mutator
from one_fact_judge import DAMAGED, MALFORMED, Subject
from opened_checkpoint import opened
from parallel_sets import ARCHIVES, IS_LONG, PACKED
from programs import BIN, FIXTURES, GOLDEN, RECORDED, damage_of, refuse, verify
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

SEED = 39
SHARE = 4  # of the mutators, on each set in CI
GOLDENS = ("lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2", "do_adam_bf16_torch_dp2",
           "do_adam_bf16_torch_dist_fully_reshardable_dp2",
           "do_adam_bf16_torch_dist_dp_reshardable_dp2", "v012_do_adam_fully_sharded_dp2",
           "runs/te_grouped_fp8_torch_ep2tp2dp2")
SETS = ("par_lw_muon_moe_torch_ep2tp2dp2", "par_do_adam_tied_torch_pp2vpp2dp2",
        "par_do_adam_moe_dp_reshardable_ep2dp2", "par_adam_fp16_torch_tp2dp2",
        "par_head_lw_muon_buckets_torch_dist_tp2dp2")
# Damaged already, not one of Megatron's checkpoints, or with metadata of torch 2.15, which PyTorch
# 2.11 cannot read.
NOT_SUBJECTS = ("fault5077", "par_lw_muon_torch_cp2dp2", "family_", ".fault", "plain_", "dcp_w2",
                "fsdp", "v0192.gpt", "v0192.n19.muon", "huggingface", "safetensors", "golden_",
                "torch_save")


@mutator
def all_groups_of_experts(checkpoint, _):
    changed = [group for _, one in checkpoint.optimizers() for group in one["param_groups"]
               if group.get("is_expert_parallel") is False]
    for group in changed:
        group["is_expert_parallel"] = True
    return "is_expert_parallel" if changed else None


def check(root: Path, place: int, work: Path) -> None:
    subject = Subject(root, work)
    names = list(MUTATORS)
    chosen = names if IS_LONG else names[place % SHARE :: SHARE]
    verdicts = {name: subject.judge(name, SEED) for name in chosen}
    assert any(verdicts.values())
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict and verdict.faults}
    assert wrong == {}


@pytest.mark.parametrize("name", GOLDENS)
def test_a_changed_fact_of_a_recorded_run_is_found_or_carried(name: str, tmp_path: Path) -> None:
    check(GOLDEN / name / "ckpt", GOLDENS.index(name), tmp_path)


@pytest.mark.skipif(not PACKED.is_dir(), reason=f"{PACKED} is not there")
@pytest.mark.parametrize("name", SETS)
def test_a_changed_fact_of_a_set_is_found_or_carried(
    name: str, sets: Path, tmp_path: Path
) -> None:
    check(sets / name / "ckpt", SETS.index(name) + len(GOLDENS), tmp_path)


def subjects(folder: Path) -> list[Path]:
    roots = sorted(path for path in folder.glob("*/ckpt"))
    return [path for path in roots if not any(part in str(path) for part in NOT_SUBJECTS)]


def unpacked(archive: str, folder: Path) -> Path:
    """Of the parallel sets, of the newer ones, or what is not packed."""
    if archive == "newer":
        packed = subprocess.run(["zstd", "-dcq", "--long=27", FIXTURES / "newer/sets.tar.zst"],
                                check=True, capture_output=True).stdout  # fmt: skip
        folder.mkdir()
        subprocess.run(["tar", "-C", folder, "-xf", "-"], input=packed, check=True)
    elif archive != "recorded":
        subprocess.run([PACKED / "unpack", folder, archive], check=True)
    return RECORDED if archive == "recorded" else folder


@pytest.mark.skipif(not IS_LONG or not PACKED.is_dir(), reason="a long test of sets of ../shared")
@pytest.mark.parametrize("archive", (*ARCHIVES, "newer", "recorded"))
def test_a_changed_fact_of_any_set_is_found_or_carried(archive: str, tmp_path: Path) -> None:
    failed = []
    for place, root in enumerate(subjects(unpacked(archive, tmp_path / archive))):
        work = tmp_path / f"{place:03d}"
        work.mkdir()
        try:
            check(root, place, work)
        except AssertionError as error:
            failed.append(f"{root}: {error}")
        shutil.rmtree(work)
    assert failed == [], os.linesep.join(failed)


FORMS = (
    ("do_adam_bf16_torch_dist_dp_reshardable_dp2", "fully_reshardable", "in flat buffers"),
    ("do_adam_bf16_torch_dist_dp_reshardable_dp2", "dp_zero_gather_scatter", "in flat buffers"),
    ("do_adam_bf16_torch_dist_fully_reshardable_dp2", "dp_reshardable", "not in flat buffers"),
)


@pytest.mark.parametrize(("name", "stated", "found"), FORMS)
def test_a_form_that_keys_contradict_is_named(
    name: str, stated: str, found: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(GOLDEN / name / "ckpt", root, copy_function=shutil.copyfile)
    common = iteration_folder(root) / "common.pt"
    edit_file(common, lambda tree: tree["content_metadata"].update(
        distrib_optim_sharding_type=stated))  # fmt: skip
    code, document = verify(root)
    said = f"is '{stated}', but the optimizer's state is {found}"
    assert code == DAMAGED and any(said in line for line in damage_of(document)), document
    assert said in refuse(MALFORMED, "reshard", root, tmp_path / "made", "--dp", 3)


@pytest.mark.parametrize("name", ("lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2",
                                  "do_adam_bf16_torch_dp2"))  # fmt: skip
def test_a_group_that_says_experts_of_a_dense_model_is_named(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(GOLDEN / name / "ckpt", root, copy_function=shutil.copyfile)
    checkpoint = opened(root)
    assert MUTATORS["all_groups_of_experts"](checkpoint, random.Random(SEED))
    checkpoint.save()
    said = "its parameter group says is_expert_parallel, but it is not an expert"
    code, document = verify(root)
    assert code == DAMAGED and any(said in line for line in damage_of(document)), document
    assert said in refuse(MALFORMED, "reshard", root, tmp_path / "made", "--dp", 3)

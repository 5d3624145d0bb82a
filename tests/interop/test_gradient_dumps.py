"""A replay from Megatron's own dump of gradients is the replay from whole ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file

import gradient_dumps
from parallel_sets import IS_LONG, MALFORMED, NOT_FOUND, USAGE, needs_sets
from programs import BIN, refuse, run, succeed

pytestmark = [
    needs_sets,
    pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built"),
]

FAMILIES = {"par_lw_muon_llama_torch_tp2": "llama", "par_lw_muon_tied_torch_pp2vpp2dp2": "tied",
            "par_lw_muon_moe_torch_dist_ep2tp2dp2": "moe"}
MORE = {"par_lw_muon_torch_tp2pp2dp2": "gpt", "par_do_adam_moef_torch_ep2pp2dp2": "moef",
        "par_do_adam_fully_reshardable_cp2dp2": "gpt", "par_lw_muon_vpad_torch_tp2dp2": "vpad"}


def recorded(sets: Path, family: str) -> tuple[Path, int]:
    folder = sets / f"family_{family}"
    return folder / "grads.safetensors", json.loads((folder / "family.json").read_text())["steps"]


def iteration_of(root: Path) -> int:
    return int((root / "ckpt/latest_checkpointed_iteration.txt").read_text())


def make_dump(sets: Path, name: str, family: str, out: Path, scale: float = 1) -> Path:
    root = sets / name
    grads = gradient_dumps.step_of(*recorded(sets, family))
    scaled = {param: grad * scale for param, grad in grads.items()}
    return gradient_dumps.dump(root, scaled, out, iteration_of(root) + 1)


@pytest.mark.parametrize("name, family", (FAMILIES | (MORE if IS_LONG else {})).items())
def test_a_dump_is_merged_by_the_rules_of_the_model(
    name: str, family: str, sets: Path, tmp_path: Path
) -> None:
    make_dump(sets, name, family, tmp_path / "run")
    whole, steps = recorded(sets, family)
    base = ("step-replay", "run", sets / name / "ckpt", "--json", "--grads")
    ours = succeed(*base, tmp_path / "run/wgrads").json()
    theirs = succeed(*base, whole, "--first", steps, "--steps", 1).json()
    assert ours["steps"] == theirs["steps"]


def test_a_dump_gives_the_bits_of_whole_gradients(sets: Path, tmp_path: Path) -> None:
    name = "par_lw_muon_llama_torch_tp2"
    folder = make_dump(sets, name, "llama", tmp_path)
    whole, steps = recorded(sets, "llama")
    checkpoint = sets / name / "ckpt"
    succeed("step-replay", "run", checkpoint, "--grads", folder, "-o", tmp_path / "ours")
    outcome = run("step-replay", "run", checkpoint, "--grads", whole, "--first", steps, "--steps",
                  1, "--expect", tmp_path / "ours", "--atol", 0, "--json")
    assert outcome.json()["expected"]["identical"], outcome


def test_gradients_are_divided_by_the_loss_scale_of_the_checkpoint(
    sets: Path, tmp_path: Path
) -> None:
    name = "par_adam_fp16_torch_tp2dp2"
    scale = json.loads((sets / name / "expected/run.json").read_text())["next_step"]["loss_scale"]
    folder = make_dump(sets, name, "fp16", tmp_path, scale)
    outcome = run("step-replay", "run", sets / name / "ckpt", "--grads", folder, "--expect",
                  sets / name / "expected/next_state.safetensors", "--json")
    assert outcome.code == 0 and outcome.json()["steps"][0]["loss_scale"] == scale, outcome


def test_a_step_whose_gradients_overflow_is_skipped(sets: Path, tmp_path: Path) -> None:
    name = "par_adam_fp16_torch_tp2dp2"
    folder = make_dump(sets, name, "fp16", tmp_path, float("inf"))
    outcome = run("step-replay", "run", sets / name / "ckpt", "--grads", folder, "--expect",
                  sets / name / "expected/state.safetensors", "--json")
    document = outcome.json()
    assert outcome.code == 0 and document["steps"][0]["skipped"], outcome
    assert document["expected"]["identical"], outcome


def test_files_of_another_run_are_refused(sets: Path, tmp_path: Path) -> None:
    name = "par_lw_muon_llama_torch_tp2"
    folder = make_dump(sets, name, "llama", tmp_path)
    replay = ("step-replay", "run", sets / name / "ckpt", "--grads", folder)
    file = folder / "mp_rank_01.pth"
    content = torch.load(file)
    shutil.copy(file, folder / "mp_rank_02.pth")
    assert "mp_rank_02.pth" in refuse(MALFORMED, *replay)
    (folder / "mp_rank_02.pth").unlink()
    content["model_chunk0"]["decoder.layers.7.mlp.linear_fc2.weight"] = torch.zeros(1)
    torch.save(content, file)
    assert "decoder.layers.7" in refuse(MALFORMED, *replay)
    del content["model_chunk0"]["decoder.layers.7.mlp.linear_fc2.weight"]
    norm = "decoder.final_layernorm.weight"
    content["model_chunk0"][norm] += 1
    torch.save(content, file)
    assert norm in refuse(MALFORMED, *replay) and "copy" in refuse(MALFORMED, *replay)
    file.unlink()
    assert "mp_rank_01.pth" in refuse(NOT_FOUND, *replay)
    other = folder.rename(folder.with_name("iter_0000099"))
    assert "no gradients of iteration" in refuse(NOT_FOUND, *replay[:-1], other)
    assert "--first" in refuse(USAGE, *replay[:-1], other, "--first", 1)


def test_gradients_of_a_torch_file_and_of_dcp_are_those_of_safetensors(
    sets: Path, tmp_path: Path
) -> None:
    grads = gradient_dumps.step_of(*recorded(sets, "gpt"))
    checkpoint = sets / "par_lw_muon_torch_dp1/ckpt"
    save_file({f"grad0.{name}": grad for name, grad in grads.items()}, tmp_path / "g.safetensors")
    torch.save({"grad0": grads}, tmp_path / "nested.pt")
    torch.save({f"grad0.{name}": grad for name, grad in grads.items()}, tmp_path / "flat.pt")
    torch.distributed.checkpoint.save(
        {"grad0": grads}, checkpoint_id=tmp_path / "dcp", no_dist=True
    )
    steps = [
        succeed("step-replay", "run", checkpoint, "--grads", tmp_path / source, "--json").json()
        for source in ("g.safetensors", "nested.pt", "flat.pt", "dcp")
    ]
    assert all(other["steps"] == steps[0]["steps"] for other in steps), steps

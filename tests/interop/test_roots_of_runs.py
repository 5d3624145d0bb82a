"""Folders of a run and what lies beside a model: opened, or said what is there and what to open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from programs import BIN, run, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, USAGE, UNSUPPORTED, NOT_FOUND = 1, 2, 4, 5
WEIGHTS = torch.arange(6.0)


def save_step(folder: Path, *models: str) -> None:
    for name in models:
        (folder / name).mkdir(parents=True)
        torch.save({"w": WEIGHTS}, folder / name / "model_world_size_1_rank_0.pt")


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    """As verl's RayPPOTrainer leaves it."""
    root = tmp_path / "verl"
    for step in (2, 10):
        save_step(root / f"global_step_{step}", "actor")
        torch.save({"_snapshot": step}, root / f"global_step_{step}/data.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    return root


def test_the_root_of_verl_opens_what_its_tracker_names(verl: Path, tmp_path: Path) -> None:
    for path in (verl, verl / "global_step_10"):
        assert succeed("ckpt-inspect", path, "--json").json()["path"].count("_10/actor")
        assert "OK" in succeed("ckpt-inspect", "verify", path).stdout
    (verl / "latest_checkpointed_iteration.txt").write_text("2")
    assert succeed("ckpt-inspect", verl, "--json").json()["path"].count("_2/actor")
    succeed("ckpt-convert", verl, tmp_path / "made.pt", "--to", "torch")
    assert torch.equal(torch.load(tmp_path / "made.pt")["model"]["w"], WEIGHTS)


def test_of_two_models_of_verl_one_is_to_be_named(verl: Path) -> None:
    save_step(verl / "global_step_10", "critic")
    for arguments in ([verl], [verl / "global_step_10"], [verl, "--iteration", 10]):
        outcome = run("ckpt-inspect", "verify", *arguments)
        assert outcome.code == USAGE and "actor and critic" in outcome.stderr, outcome
        assert "global_step_10/actor or " in outcome.stderr


def test_a_missing_step_of_verl_is_named(verl: Path) -> None:
    (verl / "latest_checkpointed_iteration.txt").write_text("11")
    outcome = run("ckpt-inspect", verl)
    assert outcome.code == NOT_FOUND and "global_step_11: the folder" in outcome.stderr
    assert "newest that it holds is global_step_10" in outcome.stderr


@pytest.mark.parametrize("latest, said", [
    ("global_step9", "global_step9: the folder that `latest` names is missing"),
    (None, "`latest`, which names the folder that DeepSpeed loads, is missing")])
def test_a_root_of_deepspeed_without_its_folder(latest: str, said: str, tmp_path: Path) -> None:
    for step in (2, 10):
        (tmp_path / f"global_step{step}").mkdir()
        torch.save({}, tmp_path / f"global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt")
    if latest:
        (tmp_path / "latest").write_text(latest)
    outcome = run("ckpt-inspect", "ls", tmp_path)
    assert outcome.code == NOT_FOUND and said in outcome.stderr, outcome
    assert f"{tmp_path}/global_step10" in outcome.stderr


def test_of_checkpoints_in_a_folder_the_newest_is_hinted_at(tmp_path: Path) -> None:
    for step in (2, 10, 4):
        torch.save({"w": WEIGHTS}, tmp_path / f"epoch=0-step={step}.ckpt")
    assert f"such as {tmp_path}/epoch=0-step=10.ckpt" in run("ckpt-inspect", tmp_path).stderr


@pytest.mark.parametrize("form", ["rng_state_{}.pth", "random_states_{}.pkl"])
@pytest.mark.parametrize("change", [shutil.copy, Path.rename])
def test_random_states_of_another_rank_are_found(form: str, change, tmp_path: Path) -> None:
    save_file({"w": WEIGHTS}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    first, second = (tmp_path / form.format(rank) for rank in (0, 1))
    for rank, path in enumerate((first, second)):
        torch.save({"cpu": torch.full((4,), rank)}, path)
    assert "OK" in succeed("ckpt-inspect", "verify", tmp_path).stdout
    change(second, first)
    outcome = run("ckpt-inspect", "verify", tmp_path)
    assert outcome.code == DAMAGED, outcome
    assert f"{first.name}: was saved as {second.name}" in outcome.stdout


def test_what_lightning_saves_in_shards_says_how_far_it_was(tmp_path: Path) -> None:
    """As ModelParallelStrategy of Lightning 2.6 writes it."""
    moments = {"w": {"exp_avg": WEIGHTS, "exp_avg_sq": WEIGHTS}}
    optimizer = {"state": moments, "param_groups": [{"lr": 0.1, "params": ["w"]}]}
    dcp.save({"state_dict": {"w": WEIGHTS}, "optimizer_0": optimizer},
             checkpoint_id=tmp_path, no_dist=True)
    lacking = "meta.pt is missing"
    assert lacking in succeed("ckpt-inspect", tmp_path).stdout
    assert lacking.replace(" ", ": ", 1) in succeed("ckpt-inspect", "verify", tmp_path).stdout
    torch.save({"epoch": 2, "global_step": 4, "pytorch-lightning_version": "2.6.6"},
               tmp_path / "meta.pt")
    trainer = succeed("ckpt-inspect", tmp_path, "--json").json()["trainer"]
    assert trainer == {"name": "Lightning", "version": "2.6.6", "epoch": 2, "step": 4,
                       "source": "meta.pt"}
    assert "missing" not in succeed("ckpt-inspect", "verify", tmp_path).stdout


def test_element_types_that_torch_alone_has_are_unsupported(tmp_path: Path) -> None:
    tensor = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    torch.save({"w": WEIGHTS, "four": tensor}, tmp_path / "a.pt")
    dcp.save({"w": WEIGHTS, "four": tensor}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for path in (tmp_path / "a.pt", tmp_path / "dcp"):
        outcome = run("ckpt-inspect", "verify", path)
        assert outcome.code == UNSUPPORTED and "torch.float4_e2m1fn_x2" in outcome.stderr, outcome


def test_a_lazy_view_in_a_folder_is_no_damage(tmp_path: Path) -> None:
    lazy = torch.zeros(2, dtype=torch.complex64).conj()
    dcp.save({"w": WEIGHTS, "lazy": lazy}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    outcome = succeed("ckpt-inspect", "verify", tmp_path / "dcp")
    assert "'lazy': a lazy conj view" in outcome.stdout, outcome
    outcome = run("ckpt-convert", tmp_path / "dcp", tmp_path / "a", "--to", "torch")
    assert outcome.code == UNSUPPORTED, outcome

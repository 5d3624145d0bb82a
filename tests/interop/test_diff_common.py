"""`diff` of the common state: what counts, and what equal states may differ in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from damage import edit_file
from programs import GOLDEN, run, succeed
from reading import iteration_folder, load

SOURCE = GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"
DIFFERENT = 1


@pytest.fixture
def saved(tmp_path: Path):
    """saved(name, edit) -> a copy of SOURCE whose main file was edited, and saved by torch."""

    def save(name: str, edit=lambda state: None) -> Path:
        folder = tmp_path / name
        shutil.copytree(SOURCE, folder)
        path = next(folder.glob("iter_*/mp_rank_00/model_optim_rng.pt"))
        state = load(path)
        edit(state)
        torch.save(state, path)
        return folder

    return save


def places(objects: list[dict]) -> dict[str, tuple[str, str]]:
    return {f"{each['key']}{detail['pointer']}": (detail.get("a"), detail.get("b"))
            for each in objects for detail in each["details"]}


def test_hyper_parameters_and_the_schedule_count(saved) -> None:
    def edit(state: dict) -> None:
        state["args"].lr = 0.5
        state["opt_param_scheduler"]["max_lr"] = 0.25

    outcome = run("ckpt-inspect", "diff", saved("a"), saved("b", edit), "--json")
    assert outcome.code == DIFFERENT, outcome
    found = places(outcome.json()["objects"]["different"])
    assert found["args/@lr"][1] == "0.5"
    assert found["opt_param_scheduler/max_lr"][1] == "0.25"
    assert len(found) == 2, found


def test_paths_are_told_and_do_not_count(saved) -> None:
    def edit(state: dict) -> None:
        state["args"].save = "/some\x1b[31m/where"

    one, other = saved("a"), saved("b", edit)
    outcome = succeed("ckpt-inspect", "diff", one, other, "--json")
    assert outcome.json()["equal"]
    (place,) = places(outcome.json()["common"]["different"])
    assert place == "common.args/save"
    text = succeed("ckpt-inspect", "diff", one, other).stdout
    assert "not counted" in text
    assert "\x1b" not in text


def test_common_counts_them(saved) -> None:
    other = saved("b", lambda state: setattr(state["args"], "save", "elsewhere"))
    outcome = run("ckpt-inspect", "diff", saved("a"), other, "--common", "--json")
    assert outcome.code == DIFFERENT, outcome
    assert "common.args/save" in places(outcome.json()["objects"]["different"])
    assert "common" not in outcome.json()


def test_counters_of_a_rank_count_with_common(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("a", "b")]
    for number, root in enumerate(roots):
        shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", root,
                        copy_function=shutil.copyfile)
        edit_file(iteration_folder(root) / "common.pt",
                  lambda state, n=number: state.update(rerun_state_machine={"steps": n}))
    assert run("ckpt-inspect", "diff", *roots).code == 0
    assert run("ckpt-inspect", "diff", *roots, "--common").code == DIFFERENT

"""Folders of the Trainer, Accelerate and torchtitan whose files are of several saves, or lack some.

Written with torch under the names of the programs, and as they count: see plain_folders.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from plain_folders import make_accelerate, make_trainer, optimizer_state
from programs import BIN, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")


def optimizer(steps: int, name: str = "optimizer.pt") -> Callable[[Path], object]:
    return lambda folder: torch.save(optimizer_state(steps), folder / name)


def scheduler(steps: int, name: str = "scheduler.pt", **more: int) -> Callable[[Path], object]:
    return lambda folder: torch.save({"last_epoch": steps, **more}, folder / name)


def trainer_at(steps: int) -> Callable[[Path], object]:
    return lambda folder: (folder / "trainer_state.json").write_text(
        json.dumps({"global_step": steps}))


def without(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def random_states(*ranks: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for rank in ranks:
            shutil.copyfile(folder / "rng_state.pth", folder / f"rng_state_{rank}.pth")
        (folder / "rng_state.pth").unlink()

    return change


def both(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [change(folder) for change in changes]


SOUND, DAMAGED = 0, 1
MISSING = "this file of the checkpoint is missing"
STATE = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
# What happens to checkpoint-500, the exit code, of which file something is said, what.
TRAINER = {
    "nothing": (both(), SOUND, "", ""),
    "optimizer": (optimizer(250), DAMAGED, "optimizer.pt", "counts 250 steps"),
    "later optimizer": (optimizer(501), DAMAGED, "optimizer.pt", "counts 501 steps"),
    "first step left out": (optimizer(499), SOUND, "", "optimizer.pt counts 499 steps"),
    "scheduler": (scheduler(250), DAMAGED, "scheduler.pt", "counts 250 steps"),
    "scheduler of losses": (scheduler(3, num_bad_epochs=1), SOUND, "", ""),
    "progress": (trainer_at(250), DAMAGED, "trainer_state.json", "the folder's name says 500"),
    "skipped": (both(optimizer(480), scheduler(480)), SOUND, "", "scheduler.pt counts 480 steps"),
    "all but the name": (both(optimizer(250), scheduler(250), trainer_at(250)), DAMAGED,
                         "trainer_state.json", "the state is from step 250"),
    "no optimizer": (without("optimizer.pt"), DAMAGED, "optimizer.pt", MISSING),
    "no scheduler": (without("scheduler.pt"), DAMAGED, "scheduler.pt", MISSING),
    "no progress": (without("trainer_state.json"), DAMAGED, "trainer_state.json", MISSING),
    "no random state": (without("rng_state.pth"), DAMAGED, "rng_state.pth", MISSING),
    "two ranks": (random_states(0, 1), SOUND, "", ""),
    "no first rank": (random_states(1, 2), DAMAGED, "rng_state_0.pth", MISSING),
    "save_only_model": (without(*STATE), SOUND, "", ""),
    "another loop's": (without("trainer_state.json", "training_args.bin", "scheduler.pt"), SOUND,
                       "", ""),
    "fully sharded": (both(without("optimizer.pt"), lambda f: (f / "optimizer_0").mkdir()), SOUND,
                      "", ""),
}


def check(folder: Path, code: int, file: str, said: str) -> None:
    found, document = verify(folder)
    assert found == code, document
    named = [each["file"] == file and said in each["problem"]
             for each in document["findings"] if each["severity"] == "damage"]
    assert all(named), document
    unproven = [each for each in document["not_proven"] if said in each["what"]]
    assert bool(named) == bool(file) and bool(unproven) == bool(said and not file), document
    page = succeed("ckpt-inspect", folder).stdout
    assert ("status     complete" in page) == (code == SOUND), page
    latest = run("ckpt-inspect", "latest", folder.parent)
    assert (latest.code == 0) == (code == SOUND), latest


@pytest.mark.parametrize("case", TRAINER)
def test_the_trainer(case: str, tmp_path: Path) -> None:
    change, *said = TRAINER[case]
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    make_trainer(folder)
    change(folder)
    check(folder, *said)


def processes(count: int) -> Callable[[Path], object]:
    return lambda folder: [shutil.copyfile(folder / "random_states_0.pkl",
                                           folder / f"random_states_{i}.pkl")
                           for i in range(1, count)]


ACCELERATE = {
    "nothing": (both(), SOUND, "", ""),
    "each process": (both(processes(2), optimizer(3, "optimizer.bin"),
                          scheduler(6, "scheduler.bin")), SOUND, "", ""),
    "other steps": (both(processes(2), optimizer(3, "optimizer.bin"),
                         scheduler(4, "scheduler.bin")), SOUND, "", "scheduler.bin counts 4"),
    "no optimizer": (without("optimizer.bin"), DAMAGED, "optimizer.bin", MISSING),
    "no first process": (both(processes(2), without("random_states_0.pkl")), DAMAGED,
                         "random_states_0.pkl", MISSING),
    "no random state": (without("random_states_0.pkl"), DAMAGED, "random_states_0.pkl", MISSING),
}


@pytest.mark.parametrize("case", ACCELERATE)
def test_accelerate(case: str, tmp_path: Path) -> None:
    change, *said = ACCELERATE[case]
    folder = tmp_path / "checkpoint_1"
    folder.mkdir()
    make_accelerate(folder)
    change(folder)
    check(folder, *said)


@pytest.mark.parametrize(("key", "named", "code"), [
    ("train_state.step", "step-4", SOUND), ("train_state.step", "step-6", DAMAGED),
    ("step", "step-5", SOUND), ("train_state.step", "epoch_6", SOUND)])
def test_torchtitan(key: str, named: str, code: int, tmp_path: Path) -> None:
    folder = tmp_path / named
    step = torch.tensor(4, dtype=torch.int32)
    dcp.save({"w": torch.ones(3), key: step}, checkpoint_id=folder)
    found, document = verify(folder)
    assert found == code, document
    is_other = named.startswith("step-") and named != "step-4"
    assert is_other == ("from step 4" in str(document["findings"] + document["not_proven"]))
    assert "step 4" in succeed("ckpt-inspect", folder).stdout

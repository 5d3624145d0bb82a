"""Folders of NeMo 2: weights/ is the checkpoint, context/ lies beside it.

An imitation by NeMo's source (nemo/lightning/io/pl.py, ckpt_utils.py; no run was possible here): a
torch_dist folder of Megatron-Core below weights/, whose keys begin with the name of Lightning's
module, "module."; common.pt is Lightning's dict, without args.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from damage import edit_file, edit_metadata
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DAMAGED, UNSUPPORTED = 1, 4
SOURCE = GOLDEN / "do_adam_bf16_torch_dist_fully_reshardable_dp2/ckpt"
KEY = re.compile(r"(optimizer\.state\.[a-z_0-9]+\.)?(.*)$")


def nemo_key(key: str) -> str:
    if key.startswith("rng_state"):
        return key
    state, name = KEY.match(key).groups()
    return f"{state or ''}module.{name}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "gpt--val_loss=1.00-epoch=0-last"
    iteration = iteration_folder(SOURCE)
    shutil.copytree(iteration, tmp_path / "r" / iteration.name, copy_function=shutil.copyfile)
    (tmp_path / "r/latest_checkpointed_iteration.txt").write_text(str(int(iteration.name[5:])))

    def rename(metadata) -> None:
        metadata.state_dict_metadata = {
            nemo_key(key): entry for key, entry in metadata.state_dict_metadata.items()}
        metadata.storage_data = {replace(index, fqn=nemo_key(index.fqn)): place
                                 for index, place in metadata.storage_data.items()}

    def lightnings(tree: dict) -> None:
        step = tree.pop("iteration")
        del tree["args"], tree["checkpoint_version"]
        tree.update({"epoch": 0, "global_step": step, "pytorch-lightning_version": "2.4.0"})

    edit_metadata(rename)(tmp_path / "r")
    edit_file(tmp_path / "r" / iteration.name / "common.pt", lightnings)
    root.mkdir()
    (tmp_path / "r" / iteration.name).rename(root / "weights")
    (root / "context").mkdir()
    (root / "context/model.yaml").write_text("_target_: nemo.collections.llm.GPTModel\n")
    return root


def test_the_folder_opens_as_its_weights(folder: Path) -> None:
    page = succeed("ckpt-inspect", folder).stdout
    assert "torch_dist" in page
    assert "context" in succeed("ckpt-inspect", "verify", folder).stdout


def test_its_tensors_are_those_of_the_store(folder: Path) -> None:
    hashes = {}
    for path, name in ((folder, nemo_key), (SOURCE, str)):
        listed = succeed("ckpt-inspect", "hash", path, "--json").json()["tensors"]
        hashes[path] = {one["key"]: one["sha256"] for one in listed}
    assert hashes[folder] == {nemo_key(key): one for key, one in hashes[SOURCE].items()}


@pytest.mark.parametrize("words", [("reshard", "--dp", 4), ("ckpt-convert", "--to", "torch")])
def test_what_needs_args_is_refused_by_name(words: tuple, folder: Path, tmp_path: Path) -> None:
    program, *options = words
    refusal = refuse(UNSUPPORTED, program, folder, tmp_path / "out", *options)
    assert "without training arguments" in refusal


def test_a_file_that_is_missing_is_named(folder: Path) -> None:
    (folder / "weights/__1_0.distcp").unlink()
    found = run("ckpt-inspect", "verify", folder)
    assert found.code != 0 and "__1_0.distcp" in found.text, found


def test_weights_without_context_are_no_such_folder(folder: Path) -> None:
    shutil.rmtree(folder / "context")
    assert "holds no checkpoint" in refuse({UNSUPPORTED, 5}, "ckpt-inspect", folder)

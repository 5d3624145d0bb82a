"""What a torch_dist checkpoint holds beside its tensors: no conversion loses it unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from damage import edit_args, edit_file, edit_metadata
from programs import BIN, GOLDEN, refuse, run, succeed
from reading import iteration_folder

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

CORRUPT, UNSUPPORTED = 3, 4
DIST_SAMPLE = GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt"


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda tree: tree["optimizer"][1]["optimizer"]["state"].clear(),
         "/optimizer/1/optimizer/state"),
        (lambda tree: tree["content_metadata"].update(zz=1), "/content_metadata/zz"),
        (lambda tree: tree.update(content_metadata=[1]), "/content_metadata"),
    ],
    ids=["an empty state", "an unknown key", "no dict"],
)  # fmt: skip
def test_what_no_conversion_writes_is_listed(change, lost: str, copied, tmp_path: Path) -> None:
    root = copied(DIST_SAMPLE)
    edit_file(iteration_folder(root) / "common.pt", change)
    outcome = succeed("reshard", root, tmp_path / "made", "--dp", "3", "--json")
    assert lost in {entry["what"] for entry in outcome.json()["not_carried"]}, outcome
    refuse(UNSUPPORTED, "reshard", root, tmp_path / "strict", "--dp", "3", "--strict")


def test_an_extra_state_that_one_layer_lacks_is_corrupt(copied, tmp_path: Path) -> None:
    root = copied(DIST_SAMPLE)
    gone = "decoder.layers.self_attention.linear_proj._extra_state/shard_1_2"

    def drop(metadata) -> None:
        del metadata.state_dict_metadata[gone]
        for index in [index for index in metadata.storage_data if index.fqn == gone]:
            del metadata.storage_data[index]

    edit_metadata(drop)(root)
    for to in ("torch", "torch_dist"):
        line = refuse(CORRUPT, "ckpt-convert", root, tmp_path / "made", "--to", to)
        assert "1 of 2 layers" in line and "linear_proj._extra_state" in line
    assert run("ckpt-inspect", "verify", root).code == 1


def test_an_argument_that_is_no_number_is_not_replaced_by_one(copied, tmp_path: Path) -> None:
    root = copied(DIST_SAMPLE)
    edit_args(transformer_pipeline_model_parallel_size=[1, 2])(root)
    line = refuse(UNSUPPORTED, "reshard", root, tmp_path / "made", "--dp", "3")
    assert "/args/@transformer_pipeline_model_parallel_size" in line
    assert "neither a number nor a text" in line and not (tmp_path / "made").exists()
    succeed("ckpt-convert", root, tmp_path / "same", "--to", "torch_dist")

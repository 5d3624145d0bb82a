"""A file that its name makes one of several says which, and where the others are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from programs import BIN, damage_of, run, succeed, verify

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")

DONE = 0
TRUNK = "model_world_size_4_rank_"
FILES = {  # name, those beside it -> what is said
    (f"{TRUNK}0.pt", tuple(f"{TRUNK}{i}.pt" for i in (1, 2, 3))): (
        "shard 1 of 4, one of 4 files; the others are beside it"
    ),
    (f"{TRUNK}2.pt", (f"{TRUNK}0.pt", f"{TRUNK}3.pt")): (
        f"shard 3 of 4, one of 4 files; 2 of the others beside it, missing: {TRUNK}1.pt"
    ),
    (f"{TRUNK}3.pt", ()): "shard 4 of 4, one of 4 files; none of the others is beside it",
    ("pytorch_model-00001-of-00002.bin", ("pytorch_model-00002-of-00002.bin",)): (
        "shard 1 of 2, one of 2 files; the others are beside it"
    ),
    ("mp_rank_00_model_states.pt", ("zero_pp_rank_0_mp_rank_00_optim_states.pt",)): (
        "one rank's file of a DeepSpeed checkpoint; beside it 1 other: "
        "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    ),
    **dict.fromkeys(
        (
            ("zero_pp_rank_0_mp_rank_00_model_states.pt", ()),
            ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", ()),
            ("layer_00-model_00-model_states.pt", ()),
        ),
        "one rank's file of a DeepSpeed checkpoint",
    ),
    ("mp_rank_00/model_optim_rng.pt", ()): "one rank's file of a Megatron checkpoint",
    ("mp_rank_00_001/distrib_optim.pt", ()): "one rank's file of a Megatron checkpoint",
    ("mp_rank_01/layer_wise_optimizer_3.pt", ()): "one rank's file of a Megatron checkpoint",
    ("model_world_size_1_rank_0.pt", ()): "",
    ("model_world_size_4_rank_4.pt", ()): "",
    ("model_world_size_99999999999_rank_0.pt", ()): "",
    ("rank_0.pt", ()): "",
    ("model-of-two.pt", ()): "",
    ("model.pt", ("model_optim_rng.pt",)): "",
}


@pytest.mark.parametrize("names", FILES, ids=lambda names: names[0])
def test_a_file_of_several_says_which_and_where_the_others_are(names, tmp_path: Path) -> None:
    name, beside = names
    (tmp_path / name).parent.mkdir(exist_ok=True)
    path = tmp_path / name
    torch.save({"w": torch.ones(3)}, path)
    for other in beside:
        (tmp_path / other).write_bytes(b"anything")
    said = FILES[names]
    page, verified = run("ckpt-inspect", path), run("ckpt-inspect", "verify", path)
    assert page.code == verified.code == DONE, (page, verified)
    if not said:
        assert "\nfile " not in page.text and "of its set" not in verified.text
        return
    words = " ".join(page.text.split())
    assert said in words and "status this file is complete" in words, page
    assert said in " ".join(verified.text.split()), verified
    code, document = verify(path)
    assert code == DONE and not damage_of(document)
    assert any("of its set" in left["what"] for left in document["not_checked"])
    assert said in succeed("ckpt-inspect", "ls", path).text

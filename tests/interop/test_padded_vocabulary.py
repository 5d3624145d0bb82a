"""Rows of the vocabulary that only fill it up come and go with the tensor-parallel size; rows that
stand for a word never do. The sets have 90 words: 96 rows at TP1, 128 at TP2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from comparing import bytes_of
from damage import edit_args
from parallel_pairs import LAYOUTS, sizes
from parallel_sets import (
    Reshards,
    Resharded,
    expect_none,
    needs_sets,
    recorded_state,
    refuse_reshard,
    state_differences,
)
from parallel_twins import Twins
from programs import hash_of, succeed
from reading import DcpFolder, iteration_folder

pytestmark = needs_sets
WORDS, ROWS_AT_TP1, ROWS_AT_TP2 = 90, 96, 128
CONTAINERS = ("torch", "torch_dist")
ONE, TP2 = LAYOUTS["dp1"], LAYOUTS["tp2dp2"]
IS_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


def root_of(sets: Path, container: str, layout: str) -> Path:
    return sets / f"par_lw_muon_vpad_{container}_{layout}" / "ckpt"


def flat(root: Path, tmp_path: Path) -> dict[str, torch.Tensor]:
    made = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
    succeed("ckpt-convert", root, made, "--to", "safetensors")
    return load_file(made)


def cut(state: dict[str, torch.Tensor], rows: int) -> dict[str, torch.Tensor]:
    return {name: value[:rows] if name.endswith(IS_VOCABULARY) else value
            for name, value in state.items()}


def reasons_of(made: Resharded) -> dict[str, str]:
    """What is said of each tensor whose rows come or go."""
    return {item["what"]: item["reason"] for item in made.report["not_carried"]
            if item["what"].endswith(IS_VOCABULARY)}


def magnitudes(state: dict[str, torch.Tensor], parameter: str) -> list[float]:
    """Of the rows that TP1 has no place for, in a weight and in what the optimizer has for it."""
    return [value[ROWS_AT_TP1:].abs().max().item() for name, value in state.items()
            if name.endswith(parameter)]


@pytest.mark.parametrize("container", CONTAINERS)
def test_there_and_back_is_the_same_checkpoint(
    container: str, sets: Path, reshards: Reshards, tmp_path: Path
) -> None:
    start = root_of(sets, container, "dp1")
    there = reshards.make(start, TP2)
    back = reshards.make(there.root, ONE)
    assert len(reasons_of(there)) == 2
    assert all("32 rows" in reason for reason in reasons_of(there).values())
    expect_none(Twins(back.root, start).differences())
    hashes = ({t["sha256"] for t in hash_of(root)["tensors"] if "rng_state" not in t["key"]}
              for root in (start, back.root))
    assert len(set(map(frozenset, hashes))) == 1


@pytest.mark.parametrize("container", CONTAINERS)
def test_more_tensor_parallel_ranks_add_rows_of_zeros(
    container: str, sets: Path, reshards: Reshards, tmp_path: Path
) -> None:
    """As Megatron does when it loads the checkpoint at that size."""
    made = reshards.make(root_of(sets, container, "dp1"), TP2).root
    expected = recorded_state(sets / "par_lw_muon_vpad_torch_dist_dp1_to_tp2dp2")
    expect_none(state_differences(flat(made, tmp_path), expected))


@pytest.mark.parametrize("container", CONTAINERS)
def test_fewer_tensor_parallel_ranks_cut_rows_that_no_word_has(
    container: str, sets: Path, reshards: Reshards, tmp_path: Path
) -> None:
    made = reshards.make(root_of(sets, container, "tp2dp2"), ONE)
    theirs = recorded_state(sets / "par_lw_muon_vpad_torch_dist_tp2dp2_to_dp1")
    ours, source = flat(made.root, tmp_path), recorded_state(
        sets / f"par_lw_muon_vpad_{container}_tp2dp2"
    )
    expect_none(state_differences(cut(ours, WORDS), cut(theirs, WORDS)))
    assert all(len(ours[name]) == ROWS_AT_TP1 for name in ours if name.endswith(IS_VOCABULARY))
    assert len(reasons_of(made)) == 2
    for parameter, reason in reasons_of(made).items():
        said = [float(number) for number in re.findall(r"\d\.\d+(?:e-?\d+)?", reason)]
        lost = magnitudes(source, parameter)
        assert "32 rows" in reason
        assert any(a == pytest.approx(b, rel=1e-3) for a in said for b in lost), (reason, lost)


def test_what_is_made_at_tp1_is_what_megatron_saves_after_loading_it(
    sets: Path, reshards: Reshards
) -> None:
    made = reshards.make(root_of(sets, "torch_dist", "tp2dp2"), ONE).root
    expect_none(Twins(made, root_of(sets, "torch_dist", "tp2dp2_to_dp1")).differences())


def test_where_the_vocabulary_is_unknown_the_rows_stay(
    sets: Path, copied, reshards: Reshards
) -> None:
    root = copied(root_of(sets, "torch_dist", "dp1"))
    edit_args(vocab_size=None)(root)
    made = DcpFolder(iteration_folder(reshards.make(root, TP2).root))
    assert len(made.tensor("output_layer.weight")) == ROWS_AT_TP1
    assert made.common["args"].padded_vocab_size == ROWS_AT_TP1
    told = DcpFolder(iteration_folder(reshards.make(root, TP2, "--vocab-size", str(WORDS)).root))
    assert len(told.tensor("output_layer.weight")) == ROWS_AT_TP2
    before = DcpFolder(iteration_folder(root)).tensor("output_layer.weight")
    assert bytes_of(told.tensor("output_layer.weight")[:ROWS_AT_TP1]) == bytes_of(before)


def test_a_vocabulary_larger_than_what_is_stored_is_refused(sets: Path, tmp_path: Path) -> None:
    line = refuse_reshard({2, 3, 4}, root_of(sets, "torch_dist", "dp1"), tmp_path / "made",
                          *sizes(tp=2).options, "--vocab-size", "97")
    assert "97" in line and "96" in line

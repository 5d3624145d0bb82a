"""`reshard --link`: torch_dist names its tensors, so that any size is reached by sharing files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from comparing import bytes_of, differences
from parallel_pairs import LAYOUTS, Sizes, sizes
from parallel_sets import UNSUPPORTED, Reshards, expect_none, needs_sets, refuse_reshard
from parallel_twins import OF_THE_RUN
from programs import logical_digest, verify
from reading import DcpFolder, iteration_folder

pytestmark = needs_sets
DIST = "par_lw_muon_torch_dist"
LINKED = (
    (f"{DIST}_tp2pp2dp2", sizes()),
    (f"{DIST}_dp4", sizes(tp=2, pp=4)),
    (f"{DIST}_pp2vpp2dp2", LAYOUTS["tp2pp2dp2"]),
    (f"{DIST}_dp1", LAYOUTS["cp2dp2"]),
    ("par_lw_muon_tied_torch_dist_pp2dp2", sizes(tp=2)),
    ("par_lw_muon_moe_torch_dist_ep2dp2", sizes()),  # fewer groups
    ("par_lw_muon_moe_torch_dist_dp1", LAYOUTS["ep2tp2dp2"]),  # more groups
    ("par_lw_muon_moef_torch_dist_ep2pp2dp2", sizes(ep=4, dp=4)),
    ("par_adam_fp16_torch_dist_dp2", LAYOUTS["tp2dp2"]),
)


def is_shared(one: Path, other: Path) -> bool:
    """A hard link; a file system with reflinks would share blocks of another file."""
    return os.path.samefile(one, other) or one.read_bytes() == other.read_bytes()


def stages_of(folder: DcpFolder) -> tuple[int, int]:
    args = folder.common["args"]
    return args.tensor_model_parallel_size, args.pipeline_model_parallel_size


@pytest.mark.parametrize(("source", "target"), LINKED, ids=str)
def test_linked_and_written_results_are_one_state(
    source: str, target: Sizes, sets: Path, reshards: Reshards
) -> None:
    root = sets / source / "ckpt"
    linked, written = (reshards.make(root, target, *options) for options in (("--link",), ()))
    mine, others = (DcpFolder(iteration_folder(made.root)) for made in (linked, written))
    expect_none(differences(mine.common, others.common))
    # Random states of the old grid stay in the linked files, under keys that nobody asks for.
    old = {key for key in mine.metadata.state_dict_metadata if key.startswith("rng_state/")}
    assert (mine.metadata.state_dict_metadata.keys() | old
            == others.metadata.state_dict_metadata.keys() | old)
    for key in others.tensors():
        assert bytes_of(mine.tensor(key)) == bytes_of(others.tensor(key)), key
    same_stages = stages_of(mine) == stages_of(DcpFolder(iteration_folder(root)))
    for key in others.objects():
        if key.startswith("rng_state/") and same_stages:
            continue  # linked ones stay as they are
        expect_none(differences(mine.object(key), others.object(key), path=key))
    assert logical_digest(linked.root) == logical_digest(root)
    assert verify(linked.root)[0] == 0


@pytest.mark.parametrize(("source", "target"), LINKED[:3], ids=str)
def test_files_of_tensors_are_the_sources(
    source: str, target: Sizes, sets: Path, reshards: Reshards
) -> None:
    root = sets / source / "ckpt"
    made = reshards.make(root, target, "--link")
    files = sorted(iteration_folder(root).glob("*.distcp"))
    assert made.report["linked_bytes"] >= sum(path.stat().st_size for path in files) > 0
    for path in files:
        assert is_shared(iteration_folder(made.root) / path.name, path), path.name


def test_what_is_linked_can_be_resharded_again(sets: Path, reshards: Reshards) -> None:
    root = sets / f"{DIST}_tp2pp2dp2" / "ckpt"
    there = reshards.make(root, sizes(pp=4), "--link").root
    back = reshards.make(there, LAYOUTS["tp2pp2dp2"], "--link").root
    mine, others = (DcpFolder(iteration_folder(path)) for path in (back, root))
    expect_none(differences(mine.common, others.common, OF_THE_RUN))
    assert logical_digest(back) == logical_digest(root)


def test_a_padded_vocabulary_cannot_be_linked(sets: Path, tmp_path: Path) -> None:
    source = sets / "par_lw_muon_vpad_torch_dist_dp1/ckpt"
    line = refuse_reshard({2, UNSUPPORTED}, source, tmp_path / "made",
                          *LAYOUTS["tp2dp2"].options, "--link")
    assert "--link" in line or "vocab" in line


def test_torch_has_no_names_to_link_by(sets: Path, tmp_path: Path) -> None:
    refuse_reshard({2, UNSUPPORTED}, sets / "par_lw_muon_torch_tp2dp2/ckpt",
                   tmp_path / "made", *sizes(pp=2).options, "--link")

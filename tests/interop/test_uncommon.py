"""States and paths off the beaten track: handled, or refused by name, never got wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden.cases import UNCOMMON_CASES, Case
from programs import GOLDEN, hash_of, refuse, run
from reading import iteration_folder
from twins import twin_differences

UNSUPPORTED, NOT_FOUND = 4, 5


@pytest.mark.parametrize(
    ("program", "options", "made_format"),
    [
        ("ckpt-convert", ("--to", "torch"), "torch_dp2"),
        ("reshard", ("--dp", 1), "torch_dist_dp1"),
    ],
)
@pytest.mark.parametrize("case", UNCOMMON_CASES, ids=lambda case: case.name)
def test_uncommon_layout_is_got_right_or_refused_by_name(
    case: Case, program: str, options: tuple, made_format: str, generated: Path, tmp_path: Path
) -> None:
    source = generated / case.folder("torch_dist", 2)
    outcome = run(program, source, tmp_path / "made", *options)
    if outcome.code == 0:
        expected = generated / f"{case.name}_{made_format}"
        assert twin_differences(tmp_path / "made", expected) == []
        return
    line = refuse(UNSUPPORTED, program, source, tmp_path / "made", *options)
    assert ".metadata" in line or "common.pt" in line, line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", UNCOMMON_CASES, ids=lambda case: case.name)
def test_uncommon_torch_folders_reshard_right_or_are_refused(
    case: Case, generated: Path, tmp_path: Path
) -> None:
    """The torch format does not know these layouts of keys, only that of experts."""
    source = generated / case.folder("torch", 2)
    outcome = run("reshard", source, tmp_path / "made", "--dp", 1)
    if outcome.code == 0:
        expected = generated / case.folder("torch", 1)
        assert twin_differences(tmp_path / "made", expected, through_torch_dist=False) == []
        return
    assert case.name == "gpt2l_moe" and outcome.code == UNSUPPORTED, outcome
    assert "num_experts" in outcome.stderr


NEWER_SETS = (
    "head_lw_muon_bf16_torch_dist_dp1",
    "head_lw_muon_bf16_torch_dist_dp2",
    "head_lw_muon_bf16_torch_dist_fully_reshardable_dp2",
)


@pytest.mark.parametrize("name", NEWER_SETS)
@pytest.mark.parametrize(
    ("program", "options"), [("ckpt-convert", ("--to", "torch")), ("reshard", ("--dp", 4))]
)
def test_newer_megatron_layout_is_refused_and_not_taken_for_a_plain_state_dict(
    name: str, program: str, options: tuple, fixtures: Path, tmp_path: Path
) -> None:
    refuse(UNSUPPORTED, program, fixtures / name / "ckpt", tmp_path / "made", *options)
    assert list(tmp_path.iterdir()) == []


UNREAD_SETS = (
    ("dcp_w2_zstd/ckpt", "zstd"),
    ("dcp_w2_safetensors_fmt/ckpt", ""),
    ("torch_save_variety/legacy.pt", ""),
)


@pytest.mark.parametrize(("name", "mention"), UNREAD_SETS)
def test_formats_that_are_not_read_are_named_or_read(
    name: str, mention: str, fixtures: Path
) -> None:
    """Valid files of a kind that may be unsupported: never called corrupt."""
    outcome = run("ckpt-inspect", "hash", fixtures / name)
    assert outcome.code in (0, UNSUPPORTED), outcome
    assert mention in outcome.stderr


def test_iteration_option_opens_what_the_tracker_does_not_name(
    generated: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    first, second = (generated / name for name in ("gpt2l_torch_dp2", "gpt2l_fresh_torch_dp2"))
    shutil.copytree(second, root)
    shutil.copytree(iteration_folder(first), root / "iter_0000003")
    assert hash_of(root)["digest"] == hash_of(second)["digest"]
    assert hash_of(root, "--iteration", "3")["digest"] == hash_of(first)["digest"]
    assert hash_of(root / "iter_0000003")["digest"] == hash_of(first)["digest"]
    refuse(NOT_FOUND, "ckpt-inspect", "hash", root, "--iteration", "4")


def test_paths_may_hold_any_letters(tmp_path: Path) -> None:
    source = tmp_path / "a b\u00fc'\U0001f600" / "-ckpt"
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt", source)
    target = tmp_path / "new\u4f60 folder"
    outcome = run("ckpt-convert", source, target, "--to", "torch_dist")
    assert outcome.code == 0, outcome
    assert twin_differences(target, GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt") == []


def test_a_folder_reached_by_a_link_is_the_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    expected = hash_of(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    assert hash_of(link)["digest"] == expected["digest"]


def test_a_destination_inside_the_source_is_refused(copied) -> None:
    root = copied(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt")
    before = sorted(root.rglob("*"))
    outcome = run("reshard", root, root / "iter_0000003/made", "--dp", 4)
    assert outcome.code in (2, 5), outcome
    assert sorted(root.rglob("*")) == before

"""--state-dtype: optimizer state in another type. Checkpoints are those of test_precision_aware."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parallel_sets import UNSUPPORTED, expect_none, state_differences
from programs import refuse, succeed
from test_precision_aware import FORMS, OUTPUT, converted, expected_of, flat_state
from test_zero1_golden import STATE, saved_again, state_in

USAGE = 2
AVERAGES = "optimizer.state.exp_avg."


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_moments_are_rounded_as_torch_rounds_them(
    dtype: torch.dtype, form: str, aware: Path, tmp_path: Path
) -> None:
    source = aware / f"whole_masters_{form}_dp2"
    result = converted(source / "ckpt", tmp_path / "made", form, "--state-dtype",
                       f"exp_avg={str(dtype).removeprefix('torch.')}")
    expected = {key: tensor.to(dtype) if key.startswith(AVERAGES) else tensor
                for key, tensor in expected_of(source).items()}
    expect_none(state_differences(flat_state(result, tmp_path), expected))


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_what_is_widened_keeps_every_value(dtype: str, aware: Path, tmp_path: Path) -> None:
    source = aware / "whole_masters_fully_reshardable_dp2/ckpt"
    narrow = converted(source, tmp_path / "narrow", FORMS[2], "--state-dtype", f"exp_avg={dtype}")
    wide = converted(narrow, tmp_path / "wide", FORMS[1], "--state-dtype", "exp_avg=torch.float32")
    (tmp_path / "after").mkdir()
    before, after = flat_state(narrow, tmp_path), flat_state(wide, tmp_path / "after")
    assert {t.dtype for key, t in after.items() if key.startswith(AVERAGES)} == {torch.float32}
    expect_none(state_differences(after, {key: tensor.float() if key.startswith(AVERAGES)
                                          else tensor for key, tensor in before.items()}))


def test_processes_and_a_resumed_run_write_the_same_bytes(aware: Path, tmp_path: Path) -> None:
    source = aware / "whole_masters_fully_reshardable_dp2/ckpt"
    asked = ("--to", "torch_dist", "--state-dtype", "exp_avg=bfloat16")
    for name, options in {"one": [()], "resumed": [("--resume",)],
                          "two": [("--rank", rank, "--world-size", 2) for rank in (0, 1)]}.items():
        for more in options:
            succeed("ckpt-convert", source, tmp_path / name, *asked, *more)
    own = sorted(file for file in (tmp_path / "one").rglob("*") if file.is_file())
    for file in own:
        for name in ("resumed", "two"):
            other = tmp_path / name / file.relative_to(tmp_path / "one")
            assert other.read_bytes() == file.read_bytes(), other


def test_what_is_rounded_is_said(aware: Path, tmp_path: Path) -> None:
    source = aware / "whole_masters_fully_reshardable_dp2/ckpt"
    asked = ("--to", "torch_dist", "--state-dtype", "exp_avg=bfloat16")
    outcome = succeed("ckpt-convert", source, tmp_path / "a", *asked)
    assert "exp_avg: float32 to bfloat16" in outcome.text and "rounded, as asked" in outcome.text
    assert "next training step: will differ" in outcome.text
    assert "of the source, in the requested types" in outcome.text
    line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "b", *asked, "--strict")
    assert "exp_avg" in line


def test_rank_files_hold_float32_alone(aware: Path, tmp_path: Path) -> None:
    line = refuse(UNSUPPORTED, "ckpt-convert", aware / "whole_masters_torch_dp2/ckpt",
                  tmp_path / "a", "--to", "torch", "--state-dtype", "exp_avg=bfloat16")
    assert "float32" in line


def test_a_value_above_the_range_of_the_type_is_refused(
    aware: Path, copied, tmp_path: Path
) -> None:
    root = copied(aware / "whole_masters_fully_reshardable_dp2/ckpt")
    state = state_in(root)
    state[f"{STATE}exp_avg.{OUTPUT}"][0, 0] = 70000.0
    saved_again(root, lambda kept: kept.update(state))
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "torch_dist",
                  "--state-dtype", "exp_avg=float16")
    assert "70000" in line and OUTPUT in line
    assert not (tmp_path / "a").exists()


def test_a_second_moment_that_would_become_0_is_refused(
    aware: Path, copied, tmp_path: Path
) -> None:
    root = copied(aware / "whole_masters_fully_reshardable_dp2/ckpt")
    state = state_in(root)
    for moment in ("exp_avg", "exp_avg_sq"):
        state[f"{STATE}{moment}.{OUTPUT}"][0, 0] = 1e-12
    saved_again(root, lambda kept: kept.update(state))
    for moment in ("exp_avg=float16", "exp_avg_sq=bfloat16"):
        succeed("ckpt-convert", root, tmp_path / moment, "--to", "torch_dist", "--state-dtype",
                moment)
    line = refuse(UNSUPPORTED, "ckpt-convert", root, tmp_path / "a", "--to", "torch_dist",
                  "--state-dtype", "exp_avg_sq=float16")
    assert "which float16 rounds to 0" in line
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("asked", "text"), (
    ("exp_avg", "NAME=TYPE"), ("exp_avg=float33", "NAME=TYPE"), ("=float32", "NAME=TYPE"),
    ("momentum_buffer=float32", "no parameter has a state of this name"),
    ("fp32_param=bfloat16", "no parameter has a state of this name"),
    ("param_remainder=int32", "the form that they are filed in"),
    ("exp_avg=int32", "cannot become int32"), ("exp_avg=int16", "cannot become int16")))
def test_a_type_that_makes_no_sense_is_refused(
    asked: str, text: str, aware: Path, tmp_path: Path
) -> None:
    line = refuse(USAGE, "ckpt-convert", aware / "remainders_torch_dp2/ckpt", tmp_path / "a",
                  "--to", "torch", "--state-dtype", asked)
    assert text in line


def test_two_types_for_one_state_are_refused(aware: Path, tmp_path: Path) -> None:
    line = refuse(USAGE, "ckpt-convert", aware / "whole_masters_torch_dp2/ckpt", tmp_path / "a",
                  "--to", "torch_dist", "--state-dtype", "exp_avg=bfloat16",
                  "--state-dtype", "exp_avg=float16")
    assert "more than one type" in line

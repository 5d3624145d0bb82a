"""Every command on the result of every conversion: no crash, no internal message, exit codes as
documented, and nothing that one command says against another.

SHARDWISE_LONG_TESTS: all sources with all conversions, each result converted onward, instead of a
sample.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from comparing import bytes_of
from own_results import (
    MEGATRON, PLAIN, Case, Conversion, Result, all_cases, execute, faults_of_run,
    golden_sources, sample,
)
from parallel_sets import IS_LONG, USAGE
from programs import BIN, GOLDEN, Outcome, refuse, succeed

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason=f"{BIN} is not there")
CASES = all_cases() if IS_LONG else sample()
WITHOUT_OPTIMIZER = GOLDEN / "no_save_optim_torch_dist_dp2/ckpt"


def test_the_sample_has_every_source_and_every_conversion() -> None:
    cases = sample()
    assert {case.source for case in cases} == set(golden_sources())
    assert {case.conversion for case in cases} == {*MEGATRON, *PLAIN}


# What the form of the optimizer decides: which args state it, and where steps are counted.
OF_FORM = re.compile(r"/(@use_(layer_wise_)?distributed_optimizer|step|param_groups/\d+/step)$")


def is_another_form(conversion: Conversion) -> bool:
    return any(option in conversion.options
               for option in ("--optimizer-sharding", "--target-megatron"))


def expect_none(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n\n".join(faults), pytrace=False)


def apply(conversion: Conversion, source: Path, made: Path) -> Outcome:
    outcome = execute((conversion.program, str(source), str(made), *conversion.options.split(),
                       "--json"))
    # 2: sizes that do not divide, a form of what has none.
    faults = faults_of_run(outcome, (0, 2, 4), "conversion")
    if outcome.code != 0:
        assert not made.exists(), outcome
        told = execute(outcome.command[:-1])
        faults += faults_of_run(told, (outcome.code,))
    expect_none(faults)
    return outcome


def check_equal(conversion: Conversion, report: dict, made: Result) -> None:
    """What lists nothing that was lost or changed is equal to its source."""
    diff = made.document("diff", str(made.source), str(made.path))
    if report["not_carried"] or "safetensors" in (report["source_format"],
                                                  report["target_format"]):
        return
    if not is_another_form(conversion):
        assert diff.get("equal"), f"nothing is listed, but diff says {diff}"
        return
    assert diff["tensors"]["different_count"] == 0, diff
    for each in diff["objects"]["different"]:
        details = [detail["pointer"] for detail in each.get("details", [])]
        assert details and all(map(OF_FORM.match, details)), each


def check_result(conversion: Conversion, outcome: Outcome, source: Path, made: Path,
                 scratch: Path) -> None:
    result = Result(made, source, scratch)
    result.check()
    expect_none(result.faults)
    check_equal(conversion, outcome.json(), result)


@pytest.mark.parametrize("container", ["torch", "torch_dist", "safetensors"])
def test_a_model_that_was_saved_alone_keeps_its_weights(container: str, tmp_path: Path) -> None:
    """Against what the live model of that run held."""
    succeed("ckpt-convert", WITHOUT_OPTIMIZER, tmp_path / "made", "--to", container, "--verify")
    made = tmp_path / "made"
    if container != "safetensors":
        succeed("ckpt-convert", made, tmp_path / "flat", "--to", "safetensors")
        made = tmp_path / "flat"
    recorded = load_file(WITHOUT_OPTIMIZER.parent / "expected/state.safetensors")
    found = load_file(made / "model.safetensors")
    assert {f"model.{name}" for name in found} == set(recorded)
    for name, tensor in found.items():
        assert bytes_of(tensor) == bytes_of(recorded[f"model.{name}"]), name


@pytest.mark.parametrize("option", ["--optimizer-sharding flat_file", "--bucket-size 64",
                                    "--state-dtype exp_avg=bfloat16"])
def test_a_model_alone_has_no_form_of_optimizer_state(option: str, tmp_path: Path) -> None:
    line = refuse(USAGE, "ckpt-convert", WITHOUT_OPTIMIZER, tmp_path / "made", "--to", "torch",
                  *option.split())
    assert "a model without its optimizer has no optimizer state" in line


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_command_works_on_every_result(case: Case, tmp_path: Path) -> None:
    made = tmp_path / f"made{case.conversion.suffix}"
    outcome = apply(case.conversion, case.source.path, made)
    if outcome.code != 0:
        return
    if case.onward is None or not IS_LONG:
        check_result(case.conversion, outcome, case.source.path, made, tmp_path)
    if case.onward is None:
        return
    onward = tmp_path / f"onward{case.onward.suffix}"
    outcome = apply(case.onward, made, onward)
    if outcome.code == 0:
        check_result(case.onward, outcome, made, onward, tmp_path)

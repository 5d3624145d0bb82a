"""What step-replay is given to replay is replayed as it is, or refused with what was expected."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from programs import BIN, GOLDEN, refuse, run
from reading import model_file

pytestmark = pytest.mark.skipif(
    not (BIN / "step-replay").exists(), reason="step-replay was not built"
)

SAMPLE = GOLDEN / "lw_muon_bf16_torch_dp2"
GRADS = SAMPLE / "expected/init_and_grads.safetensors"
STATE = SAMPLE / "expected/state.safetensors"
WEIGHT = "decoder.layers.0.mlp.linear_fc1.weight"
BIAS = "decoder.final_layernorm.bias"
DIFFERENT, MALFORMED = 1, 3

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    what: str
    change: Callable[[Tensors], object]
    mentions: tuple[str, ...]


def case(what: str, change: Callable[[Tensors], object], *mentions: str) -> Case:
    return Case(what, change, mentions)


def without(*prefixes: str) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(prefixes)]:
            del tensors[key]
    return change


def with_one(key: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({key: tensor})


def with_type(key: str, dtype: torch.dtype) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({key: tensors[key].to(dtype)})


def renumbered(tensors: Tensors) -> None:
    for key in [key for key in tensors if key.startswith("grad1.")]:
        tensors[key.replace("grad1.", "grad5.")] = tensors.pop(key)


FIRST = f"grad0.{WEIGHT}"
VECTOR = torch.zeros(16)
GRADIENTS = (
    case("no gradients of the middle step", without("grad1."), "grad2.", "steps 0, 1, 2"),
    case("only steps 0, 2 and 5", renumbered, "no gradient of step 1"),
    case("no gradient of a parameter", without(FIRST), FIRST, "is missing"),
    case("no gradient of a parameter in the last step", without(f"grad2.{BIAS}"), f"grad2.{BIAS}"),
    case("a step far away", with_one(f"grad4294967295.{BIAS}", VECTOR), "grad4294967295.",
         "no gradient of step 3"),
    case("a step too far to be one", with_one(f"grad99999999999999999999.{BIAS}", VECTOR),
         "grad99999999999999999999."),
    case("a step of one parameter", with_one(f"grad3.{BIAS}", VECTOR), "grad3.", "is missing"),
    case("a step with a leading zero", with_one(f"grad00.{BIAS}", VECTOR), "grad00."),
    case("a negative step", with_one("grad-1.x", VECTOR), "grad-1.x"),
    case("no step", with_one("grad.x", VECTOR), "grad.x"),
    case("a prefix alone", with_one("gradx", VECTOR), "gradx"),
    case("another name", with_one(f"main_grad.{BIAS}", VECTOR), "main_grad."),
    case("no parameter's", with_one("grad0.evil\x1b[31m", VECTOR), r"grad0.evil\x1b[31m"),
    case("transposed", lambda t: t.update({FIRST: t[FIRST].t().contiguous()}), "[64, 16]",
         "[16, 64]"),
    case("flat", lambda t: t.update({FIRST: t[FIRST].flatten()}), "[64, 16]", "[1024]"),
    case("a scalar", with_one(FIRST, torch.tensor(1.0)), "[64, 16]", "[]"),
    case("empty", with_one(FIRST, torch.zeros(0, 16)), "[64, 16]", "[0, 16]"),
    case("truth values", with_type(FIRST, torch.bool), "expected float32 or bfloat16, found bool"),
    case("integers", with_type(FIRST, torch.int64), "found int64"),
    case("fp16", with_type(FIRST, torch.float16), "found float16"),
    case("fp64", with_type(FIRST, torch.float64), "found float64"),
    case("no start of a parameter", without(f"init.{WEIGHT}"), f"init.{WEIGHT}", "is missing"),
    case("a start of another type", with_type(f"init.{WEIGHT}", torch.float32),
         "expected bfloat16, found float32"),
    case("a start of nobody", with_one("init.nobody", VECTOR), "init.nobody"),
    case("no gradients", without("grad"), "contains no gradients"),
    case("NaN", with_one(FIRST, torch.full((64, 16), float("nan"))), "NaN"),
    case("infinity", with_one(FIRST, torch.full((64, 16), float("inf"))), "infin"),
)

EXPECTED = (
    case("none of ours", lambda t: (t.clear(), t.update({"zz": torch.ones(1)})), "zz"),
    case("one more", with_one("exp_avg.nobody", VECTOR), "exp_avg.nobody"),
    case("a count more", with_one("step.nobody", torch.tensor(3.0)), "step.nobody"),
    case("models alone", without("fp32_", "exp_", "mom", "step"), "fp32_param.", "is missing"),
    case("counts of some", without(f"step.{BIAS}"), f"step.{BIAS}", "is missing"),
    case("a count that is none", with_one(f"step.{BIAS}", VECTOR), f"step.{BIAS}", "[16]"),
    case("another shape", with_one(f"exp_avg.{BIAS}", torch.zeros(15)), "[16]", "[15]"),
    case("another type", with_type(f"exp_avg.{BIAS}", torch.float64),
         "expected float32, found float64"),
)


def names(cases: tuple[Case, ...]) -> list[str]:
    return [case.what for case in cases]


def replay(folder: Path, *options: object) -> tuple:
    return ("step-replay", "run", SAMPLE / "ckpt", "--from-init", "-o", folder / "made", *options)


@pytest.mark.parametrize("case", GRADIENTS, ids=names(GRADIENTS))
def test_gradients_that_cannot_be_right_are_refused(case: Case, tmp_path: Path) -> None:
    tensors = load_file(GRADS)
    case.change(tensors)
    save_file(tensors, tmp_path / "grads.safetensors")
    line = refuse(MALFORMED, *replay(tmp_path, "--grads", tmp_path / "grads.safetensors"))
    assert "grads.safetensors" in line
    for text in case.mentions:
        assert text in line
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("case", EXPECTED, ids=names(EXPECTED))
def test_an_expected_state_that_cannot_be_right_is_refused(case: Case, tmp_path: Path) -> None:
    tensors = load_file(STATE)
    case.change(tensors)
    save_file(tensors, tmp_path / "state.safetensors")
    line = refuse(MALFORMED, *replay(tmp_path, "--grads", GRADS, "--expect",
                                     tmp_path / "state.safetensors"))
    for text in (*case.mentions, "state.safetensors"):
        assert text in line
    assert not (tmp_path / "made").exists()


def test_an_expected_nan_is_a_difference(tmp_path: Path) -> None:
    tensors = load_file(STATE)
    tensors[f"exp_avg.{BIAS}"][0] = float("nan")
    save_file(tensors, tmp_path / "state.safetensors")
    outcome = run(*replay(tmp_path, "--grads", GRADS, "--expect", tmp_path / "state.safetensors"))
    assert outcome.code == DIFFERENT, outcome


def changed_args(folder: Path, **changes: object) -> Path:
    copy = folder / "ckpt"
    shutil.copytree(SAMPLE / "ckpt", copy)
    content = torch.load(model_file(copy), weights_only=False)
    vars(content["args"]).update(changes)
    torch.save(content, model_file(copy))
    return copy


@pytest.mark.parametrize(("name", "value", "mentions"), [
    ("muon_num_ns_steps", 10**9, "at most 100 Newton-Schulz steps, found 1000000000"),
    ("muon_num_ns_steps", 5.9, "int"),
    ("muon_momentum", 1.5, "range"),
    ("adam_eps", -1.0, "negative"),
])
def test_arguments_that_make_no_sense_are_corrupt(
    name: str, value: object, mentions: str, tmp_path: Path
) -> None:
    checkpoint = changed_args(tmp_path, **{name: value})
    line = refuse(MALFORMED, "step-replay", "run", checkpoint, "--grads", GRADS, "--from-init")
    assert f"ckpt 'args.{name}': " in line
    assert mentions in line


def test_query_groups_that_do_not_divide_the_weight_are_corrupt(tmp_path: Path) -> None:
    checkpoint = changed_args(tmp_path, kv_channels=7)
    line = refuse(MALFORMED, "step-replay", "run", checkpoint, "--grads", GRADS, "--from-init")
    assert "linear_qkv.weight" in line
    assert "rows of a query group" in line

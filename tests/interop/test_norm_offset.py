"""Norms that are stored without the 1 of their mean leave with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from huggingface_sets import ARGS, megatron_model, tensors_of, unpack, write_checkpoint
from name_tables import exported, read_table
from programs import run

TYPES = {
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32,
}  # fmt: skip


CASES = (
    ("apply_layernorm_1p", "float32", None),
    ("apply_layernorm_1p", "bfloat16", None),
    ("layernorm_zero_centered_gamma", "bfloat16", "float32"),
    ("layernorm_zero_centered_gamma", "float32", "bfloat16"),
    ("layernorm_zero_centered_gamma", "float16", "bfloat16"),
)


@pytest.mark.parametrize(("option", "stored", "wanted"), CASES)
def test_one_is_added_in_float32_and_rounded_once(
    option: str, stored: str, wanted: str | None, tmp_path: Path
) -> None:
    args = {**ARGS["llama"], option: True}
    exact = {key: tensor - 1 if "norm" in key else tensor
             for key, tensor in megatron_model(unpack(tmp_path), "llama").items()}  # fmt: skip
    model = {key: tensor.to(TYPES[stored]) for key, tensor in exact.items()}
    source = write_checkpoint(tmp_path / "ckpt", model, args)
    options = [] if wanted is None else ["--dtype", wanted]
    done = run("ckpt-convert", source, tmp_path / "hf", "--to", "huggingface", "--verify", *options)
    assert done.code == 0, done
    made = tensors_of(tmp_path / "hf")
    float32 = {key: tensor.float() for key, tensor in model.items()}
    expected = exported(read_table("llama"), args, float32)
    assert made.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(made[key], tensor.to(TYPES[wanted or stored])), key
    loses = (wanted or stored) != "float32"
    assert ("rounded behind the 1 that is added" in done.stdout + done.stderr) == loses, done
    if loses:
        assert "bits of 5 norms" in done.stdout + done.stderr, done

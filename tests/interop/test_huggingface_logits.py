"""Logits of exports beside Megatron-Core's own (tests/golden/huggingface/logits.tar.xz)."""

from __future__ import annotations

import copy
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from name_tables import MUTATIONS, read_table
from programs import GOLDEN, run

# Each was trained at TP 2, PP 2, VPP 2 and, with experts, EP 2, and is filed in this form.
FORMS = {
    "llama": "torch", "mistral": "torch_dist", "qwen2": "torch", "qwen3": "torch_dist",
    "qwen3_moe": "torch", "mixtral": "torch_dist", "deepseek_v3": "torch_dist",
    "gpt_oss": "torch", "glm4_moe": "torch_dist", "nemotron_h": "torch_dist",
    "qwen3_next": "torch_dist",
}  # fmt: skip
# Norms whose offset of 1 is added; rounded to 16 bits they are not those that were trained.
EXACT = {"qwen3_next": ("--dtype", "*.linear_attn.norm.weight=float32")}
NEW = ("glm4_moe", "nemotron_h", "qwen3_next")  # those whose tensors no set of both forms proves


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logits")
    with tarfile.open(GOLDEN / "huggingface/logits.tar.xz") as archive:
        archive.extractall(folder)
    return folder


def export(source: Path, destination: Path, *options: object) -> bool:
    done = run("ckpt-convert", source, destination, "--to", "huggingface", *options)
    assert done.code in (0, 3, 4), done  # a wrong table, one that does not fit
    return done.code == 0


def difference(folder: Path, recorded: dict[str, torch.Tensor]) -> float:
    """The largest of the logits, as a part of the largest logit."""
    from transformers import AutoModelForCausalLM

    tokens, wanted = recorded["tokens"], recorded["logits"]
    attention = "sdpa" if tokens.shape[1] > 1000 else "eager"  # the latter holds all weights
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation=attention, dtype=torch.float32
    )
    assert not any(report.values()), report
    with torch.no_grad():
        found = model.eval()(tokens).logits[:, -wanted.shape[1] :]
    wanted = wanted[..., : found.shape[-1]]  # without rows of padding
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("family", FORMS)
def test_logits_are_those_of_megatron_core(sets: Path, family: str, tmp_path: Path) -> None:
    exact = EXACT.get(family, ())
    assert export(sets / family / "ckpt", tmp_path / "hf", "--verify", *exact)
    assert difference(tmp_path / "hf", load_file(sets / family / "logits.safetensors")) < 1e-5


@pytest.mark.parametrize("family", NEW)
def test_a_wrong_table_has_other_logits(sets: Path, family: str, tmp_path: Path) -> None:
    recorded, tried = load_file(sets / family / "logits.safetensors"), 0
    for number, (name, change) in enumerate(MUTATIONS.items()):
        table = copy.deepcopy(read_table(family))
        if not change(table):
            continue
        tried += 1
        table.pop("base")  # which would bring back what a change took away
        (tmp_path / "table.json").write_text(json.dumps(table))
        folder = tmp_path / str(number)
        if export(sets / family / "ckpt", folder, "--names", tmp_path / "table.json",
                  *EXACT.get(family, ())):  # fmt: skip
            try:
                found = difference(folder, recorded)
            except (AssertionError, RuntimeError):  # keys or shapes that transformers lacks
                continue
            assert found > 1e-4, name
    assert tried >= 5


@pytest.mark.parametrize("family", NEW)
@pytest.mark.parametrize("numbers", [("layers.1.", "layers.3."), ("experts.0.", "experts.1.")])
def test_tensors_under_another_number_are_noticed(
    sets: Path, family: str, numbers: tuple[str, str], tmp_path: Path
) -> None:
    assert export(sets / family / "ckpt", tmp_path / "hf")
    tensors, (one, other) = load_file(tmp_path / "hf/model.safetensors"), numbers
    moved = {}
    for key, tensor in tensors.items():
        there = key.replace(one, other) if one in key else key.replace(other, one)
        fits = there in tensors and tensors[there].shape == tensor.shape
        moved[there if fits else key] = tensor
    shutil.copytree(tmp_path / "hf", tmp_path / "moved")
    save_file(moved, tmp_path / "moved/model.safetensors", {"format": "pt"})
    recorded = load_file(sets / family / "logits.safetensors")
    assert difference(tmp_path / "moved", recorded) > 1e-4

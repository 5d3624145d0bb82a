"""ckpt-convert --to huggingface: models of both forms, from every kind of Megatron folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from huggingface_sets import (
    ARGS,
    engine_names,
    megatron_model,
    tensors_of,
    unpack,
    write_checkpoint,
)
from programs import run

MOE = ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FAMILY_hf, FAMILY_megatron.pt, FAMILY_ckpt, and FAMILY_te: with TransformerEngine's names."""
    folder = unpack(tmp_path_factory.mktemp("huggingface"))
    for family, args in ARGS.items():
        model = megatron_model(folder, family)
        write_checkpoint(folder / f"{family}_ckpt", model, args)
        write_checkpoint(folder / f"{family}_te", engine_names(model), args, "transformer_engine")
    return folder


def export(source: Path, destination: Path, *options: object) -> dict[str, torch.Tensor]:
    done = run("ckpt-convert", source, destination, "--to", "huggingface", "--verify", *options)
    assert done.code == 0, done
    return tensors_of(destination)


def require_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("family", ARGS)
def test_every_tensor_is_the_original_s_to_the_bit(sets: Path, family: str, tmp_path: Path) -> None:
    own = tensors_of(sets / f"{family}_hf")
    names = ["--names", family] if family == "mistral" else []  # without a window: a llama, too
    require_same(export(sets / f"{family}_ckpt", tmp_path / "local", *names), own)
    names += ["--shard-size", "20K"]
    require_same(export(sets / f"{family}_te", tmp_path / "engine", *names), own)
    index = json.loads((tmp_path / "engine/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == own.keys()


@pytest.mark.parametrize("family", ARGS)
def test_parallel_sizes_do_not_matter(sets: Path, family: str, tmp_path: Path) -> None:
    names = ["--names", family] if family == "mistral" else []
    sizes = ["--pp", "2", "--dp", "2", *(["--ep", "2"] if family in MOE else [])]
    tensor = ["--tp", "2", *(["--etp", "1"] if family in MOE else [])]
    of_ranks = sizes if family == "gpt_oss" else ["--tp", "2", *sizes]  # biases forbid ETP 2
    for name, to in (("ranks", ["torch", *of_ranks]), ("store", ["torch_dist", *tensor, *sizes])):
        made = run("ckpt-convert", sets / f"{family}_te", tmp_path / name, "--to", *to)
        assert made.code == 0, made
    export(sets / f"{family}_te", tmp_path / "one", *names)
    for source in ("ranks", "store"):
        export(tmp_path / source, tmp_path / f"{source}_hf", *names)
        for file in sorted((tmp_path / "one").iterdir()):
            assert (tmp_path / f"{source}_hf" / file.name).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("weights", ["model", "master"])
def test_a_training_state_has_the_logits_of_megatron_core(
    generated: Path, weights: str, tmp_path: Path
) -> None:
    """Llama with tied embeddings, under a LayerWise optimizer; its weights are rounded masters."""
    for source in ("torch_dp2", "torch_dist_dp4"):
        export(generated / f"gpt5l_modern_{source}", tmp_path / source, "--weights", weights)
    config = json.loads((tmp_path / "torch_dp2/config.json").read_text())
    assert config["dtype"] == ("float32" if weights == "master" else "bfloat16")
    require_same(*(tensors_of(tmp_path / one) for one in ("torch_dp2", "torch_dist_dp4")))
    if weights == "master":
        return
    command = [sys.executable, Path(__file__).with_name("megatron_logits.py"), "gpt5l_modern"]
    done = subprocess.run(
        [*command, tmp_path / "torch_dp2"], capture_output=True, text=True, check=True, timeout=60
    )
    difference, largest = map(float, done.stdout.split())
    assert difference < 1e-5 * largest


@pytest.mark.parametrize("family", ARGS)
def test_transformers_opens_it_and_has_the_same_logits(
    sets: Path, family: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    names = ["--names", family] if family == "mistral" else []
    export(sets / f"{family}_ckpt", tmp_path / "hf", *names)
    ids = torch.arange(1, 33).view(1, -1) * 5 % 128
    logits = []
    for folder in (tmp_path / "hf", sets / f"{family}_hf"):
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
        assert not any(report.values()), report
        with torch.no_grad():
            logits.append(model.eval()(ids).logits)
    assert torch.equal(*logits)

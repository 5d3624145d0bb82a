"""Imports of quantised Hugging Face folders: the numbers of transformers' own code, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from huggingface_sets import tensors_of, unpack
from programs import refuse, succeed

CORRUPT, UNSUPPORTED = 3, 4


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("quantized"))


def dequantized(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(None)._dequantize_one(values, scales, dtype)


def written(family: Path, to: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    to.mkdir()
    config = {**json.loads((family / "config.json").read_text()), **fields}
    (to / "config.json").write_text(json.dumps(config))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()},
              to / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    return to


def in_fp8(own: dict, block: int, scale_type: torch.dtype) -> tuple[dict, dict]:
    """Projections as e4m3 with scales of blocks; what they stand for."""
    generator = torch.Generator().manual_seed(1)
    stored, meant = {}, {}
    for key, tensor in own.items():
        if "proj.weight" not in key:
            stored[key] = meant[key] = tensor.bfloat16()
            continue
        rows, columns = (-(-size // block) for size in tensor.shape)
        scales = torch.rand((rows, columns), generator=generator) * 1e-3 + 1e-5
        if scale_type == torch.uint8:
            scales = torch.randint(90, 130, (rows, columns), generator=generator)
        scales = scales.to(scale_type)
        noise = torch.randn(tensor.shape, generator=generator) * 100
        stored[key] = noise.to(torch.float8_e4m3fn)
        stored[key + "_scale_inv"] = scales
        meant[key] = dequantized(stored[key], scales, torch.bfloat16)
    return stored, meant


QUANTIZED = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 8]}


@pytest.mark.parametrize("scale_type", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_blocks_of_fp8_are_what_transformers_makes_of_them(
    sets: Path, family: str, scale_type: torch.dtype, tmp_path: Path
) -> None:
    own = tensors_of(sets / f"{family}_hf")
    block = 4 if family == "deepseek_v3" else 8  # transformers knows only whole blocks
    stored, meant = in_fp8(own, block, scale_type)
    folder = written(sets / f"{family}_hf", tmp_path / "hf", stored, dtype="bfloat16",
                     quantization_config={**QUANTIZED, "weight_block_size": [block] * 2})
    done = succeed("ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist", "--verify")
    assert "float8_e4m3fn -> bfloat16, times their scales" in done.stdout
    succeed("ckpt-convert", tmp_path / "a", tmp_path / "back", "--to", "huggingface")
    found = tensors_of(tmp_path / "back")
    assert found.keys() == meant.keys()
    for key, tensor in meant.items():
        assert torch.equal(found[key].view(torch.int16), tensor.view(torch.int16)), key


def test_a_last_block_may_be_smaller_as_deepseeks_own_are(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")
    key = "model.layers.0.mlp.down_proj.weight"  # 32 x 64
    scales = torch.rand(2, 3) + 0.5
    stored = {k: v.bfloat16() for k, v in own.items()}
    stored[key] = torch.randn(32, 64).to(torch.float8_e4m3fn)
    stored[key + "_scale_inv"] = scales
    config = {**QUANTIZED, "weight_block_size": [24, 24]}
    folder = written(sets / "llama_hf", tmp_path / "hf", stored, dtype="bfloat16",
                     quantization_config=config)  # fmt: skip
    succeed("ckpt-convert", folder, tmp_path / "a", "--to", "torch")
    state = torch.load(tmp_path / "a/release/mp_rank_00/model_optim_rng.pt", weights_only=False)
    grid = scales.repeat_interleave(24, 0)[:32].repeat_interleave(24, 1)[:, :64]
    wanted = (stored[key].float() * grid).bfloat16()
    assert torch.equal(state["model"]["decoder.layers.0.mlp.linear_fc2.weight"], wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_is_what_transformers_makes_of_it(sets: Path, dtype: str, tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator, type_ = torch.Generator().manual_seed(2), getattr(torch, dtype)
    stored, meant = {}, {}
    for key, tensor in tensors_of(sets / "gpt_oss_hf").items():
        meant[key] = tensor.to(type_)
        if not key.endswith(("gate_up_proj", "down_proj")):
            stored[key] = meant[key]
            continue
        experts, inner, rows = tensor.shape
        blocks = torch.randint(0, 256, (experts, rows, inner // 32, 16), generator=generator)
        scales = torch.randint(1, 250, (experts, rows, inner // 32), generator=generator)
        stored[key + "_blocks"], stored[key + "_scales"] = blocks.byte(), scales.byte()
        meant[key] = convert_moe_packed_tensors(blocks.byte(), scales.byte(), dtype=type_)
    folder = written(sets / "gpt_oss_hf", tmp_path / "hf", stored, dtype=dtype,
                     quantization_config={"quant_method": "mxfp4"})  # fmt: skip
    done = succeed("ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist", "--ep", 2,
                   "--dp", 2, "--verify")  # fmt: skip
    assert f"4 tensors: mxfp4 -> {dtype}" in done.stdout
    succeed("ckpt-convert", tmp_path / "a", tmp_path / "back", "--to", "huggingface")
    found = tensors_of(tmp_path / "back")
    assert found.keys() == meant.keys()
    for key, tensor in meant.items():
        assert torch.equal(found[key], tensor), key


def test_what_is_not_understood_is_refused_by_name(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")
    key = "model.layers.0.mlp.down_proj.weight"
    eight = own[key].to(torch.float8_e4m3fn)
    scale = {key + "_scale_inv": torch.ones(4, 8)}
    rows = (
        ({}, {"quant_method": "gptq"}, UNSUPPORTED, "is of \"gptq\", expected fp8 or mxfp4"),
        ({key: eight}, QUANTIZED, UNSUPPORTED, f"'{key}': is of type float8_e4m3fn, which means"),
        (scale, QUANTIZED, UNSUPPORTED, f"'{key}': is of type float32, which is not known as a"),
        ({key: eight, key + "_scale_inv": torch.ones(5, 8)}, QUANTIZED, CORRUPT, "does not divide"),
        ({"model.layers.9.x_scale_inv": torch.ones(2)}, QUANTIZED, UNSUPPORTED, "has no place"),
    )  # fmt: skip
    for number, (changes, config, code, said) in enumerate(rows):
        folder = written(sets / "llama_hf", tmp_path / str(number), {**own, **changes},
                         quantization_config=config)  # fmt: skip
        line = refuse(code, "ckpt-convert", folder, tmp_path / "a", "--to", "torch_dist")
        assert said in line, line
    folder = written(sets / "llama_hf", tmp_path / "r", {**own, key: eight, **scale},
                     dtype="float32", quantization_config=QUANTIZED)  # fmt: skip
    line = refuse(UNSUPPORTED, "ckpt-convert", folder, tmp_path / "a", "--to", "torch", "--resume")
    assert "in no file" in line or "resume" in line

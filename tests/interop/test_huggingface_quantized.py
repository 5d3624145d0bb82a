"""Quantised Hugging Face folders, read and written: the bits of transformers' own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from huggingface_sets import ARGS, megatron_model, tensors_of, unpack, write_checkpoint
from programs import refuse, run, succeed

USAGE, CORRUPT, UNSUPPORTED = 2, 3, 4


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
    whole = written(sets / f"{family}_hf", tmp_path / "meant", meant, dtype="bfloat16")
    require_products(folder, whole, tmp_path / "a")


def require_products(stored: Path, meant: Path, imported: Path) -> None:
    """diff takes the products, of another folder and of a checkpoint, bit for bit."""
    for other in (meant, imported):
        done = succeed("ckpt-inspect", "diff", other, stored, "--dequantize")
        assert "equal: " in done.stdout
        assert run("ckpt-inspect", "diff", stored, other).code == 1


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
    whole = written(sets / "gpt_oss_hf", tmp_path / "meant", meant, dtype=dtype)
    require_products(folder, whole, tmp_path / "a")


def test_an_export_is_compared_with_what_it_was_made_of(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    model = {key: torch.randn(tensor.shape, generator=generator).bfloat16()
             for key, tensor in wide_model(256, 384)[0].items()}  # fmt: skip
    source = write_checkpoint(tmp_path / "source", model, wide_model(256, 384)[1])
    to = ("--to", "huggingface", "--names", "llama")
    succeed("ckpt-convert", source, tmp_path / "plain", *to)
    succeed("ckpt-convert", source, tmp_path / "fp8", *to, "--dtype", "fp8-block128")
    # Half of the last place of e4m3, of values and of the least ones, and of the product's.
    close = ("--dequantize", "--rtol", 0.067, "--atol", 2e-5)
    compare = ("ckpt-inspect", "diff", tmp_path / "plain", tmp_path / "fp8")
    succeed(*compare, *close)
    assert run(*compare, "--dequantize", "--rtol", 0.03, "--atol", 2e-5).code == 1
    stored = tensors_of(tmp_path / "fp8")
    stored["model.layers.0.mlp.down_proj.weight_scale_inv"][1, 2] *= 2
    written(tmp_path / "fp8", tmp_path / "bad", stored)
    done = run("ckpt-inspect", "diff", tmp_path / "plain", tmp_path / "bad", *close)
    assert done.code == 1
    assert "down_proj.weight" in done.stdout
    done = run("ckpt-inspect", "diff", tmp_path / "plain", source, "--dequantize")
    assert done.code == USAGE
    assert "neither is a Hugging Face folder with tensors of fp8" in done.stderr


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


def wide_model(hidden: int, ffn: int) -> tuple[dict[str, torch.Tensor], dict]:
    """A Llama of one layer with 2 heads and 1 group."""
    generator = torch.Generator().manual_seed(3)
    head = hidden // 2
    args = dict(ARGS["llama"], num_layers=1, hidden_size=hidden, ffn_hidden_size=ffn,
                num_attention_heads=2, num_query_groups=1, kv_channels=head)  # fmt: skip
    layer = "decoder.layers.0."
    sizes = {"embedding.word_embeddings.weight": (128, hidden),
             layer + "input_layernorm.weight": (hidden,),
             layer + "self_attention.linear_qkv.weight": (4 * head, hidden),
             layer + "self_attention.linear_proj.weight": (hidden, hidden),
             layer + "pre_mlp_layernorm.weight": (hidden,),
             layer + "mlp.linear_fc1.weight": (2 * ffn, hidden),
             layer + "mlp.linear_fc2.weight": (hidden, ffn),
             "decoder.final_layernorm.weight": (hidden,),
             "output_layer.weight": (128, hidden)}  # fmt: skip
    model = {key: torch.randn(size, generator=generator) for key, size in sizes.items()}
    # Blocks of zeros, of one value, of little and large ones, of what is denormal in e4m3.
    weight = model[layer + "mlp.linear_fc2.weight"]
    weight[:128, :128] = 0
    weight[128:256, :128] *= 1e-20
    weight[:128, 128:] *= torch.logspace(-8, 6, weight[:128, 128:].shape[1])
    return model, args


def by_transformers(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    from types import SimpleNamespace

    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    class Config(SimpleNamespace):
        weight_block_size = (128, 128)
        scale_fmt = "float"

    quantizer = Fp8Quantize(SimpleNamespace(quantization_config=Config()))
    made = {}
    for key, tensor in own.items():
        made |= quantizer._quantize_one(key, tensor) if "proj.weight" in key else {key: tensor}
    return made


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return (found.dtype == wanted.dtype and found.shape == wanted.shape
            and torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_128_leave_with_the_bits_of_transformers(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    model, args = wide_model(256, 384)
    model = {key: tensor.to(dtype) for key, tensor in model.items()}
    source = write_checkpoint(tmp_path / "source", model, args)
    names = ("--names", "llama")
    succeed("ckpt-convert", source, tmp_path / "plain", "--to", "huggingface", *names)
    own = tensors_of(tmp_path / "plain")
    out = tmp_path / "fp8"
    quantize = ("--to", "huggingface", "--dtype", "fp8-block128", *names)
    done = succeed("ckpt-convert", source, out, *quantize, "--verify")
    assert "rounded to e4m3 with scales of blocks" in done.stdout
    found, wanted = tensors_of(out), by_transformers(own)
    assert found.keys() == wanted.keys()
    assert sum(key.endswith("_scale_inv") for key in found) == 7
    for key, tensor in wanted.items():
        assert same_bits(found[key].contiguous(), tensor.contiguous()), key
    config = AutoConfig.from_pretrained(out)
    assert config.quantization_config == {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}  # fmt: skip
    assert config.dtype == dtype
    # The same at other sizes and in several files; compared by names check; read back as products.
    succeed("reshard", source, tmp_path / "two", "--pp", 1, "--dp", 2)
    succeed("ckpt-convert", tmp_path / "two", tmp_path / "parts", *quantize, "--shard-size", "200K")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    assert all(torch.equal(tensor.view(torch.uint8), found[key].view(torch.uint8))
               for key, tensor in tensors_of(tmp_path / "parts").items())  # fmt: skip
    check = ("ckpt-convert", "names", "check", source, out, *names)
    assert run(*check, "--dtype", "fp8-block128").code == 0
    assert run(*check).code == 1
    succeed("ckpt-convert", out, tmp_path / "back", "--to", "torch_dist")
    succeed("ckpt-convert", tmp_path / "back", tmp_path / "again", "--to", "huggingface", *names)
    again = tensors_of(tmp_path / "again")
    for key, tensor in own.items():
        scales = found.get(key + "_scale_inv")
        meant = tensor if scales is None else dequantized(found[key], scales, dtype)
        assert torch.equal(again[key], meant), key


def test_last_blocks_may_be_smaller_and_what_has_no_scale_is_named(
    sets: Path, tmp_path: Path
) -> None:
    model, args = wide_model(160, 320)
    names = ("--to", "huggingface", "--names", "llama")
    source = write_checkpoint(tmp_path / "source", model, args)
    succeed("ckpt-convert", source, tmp_path / "fp8", *names, "--dtype", "fp8-block128")
    found = tensors_of(tmp_path / "fp8")
    succeed("ckpt-convert", source, tmp_path / "plain", *names)
    for key, tensor in tensors_of(tmp_path / "plain").items():
        if "proj.weight" not in key:
            continue
        for row in range(0, tensor.shape[0], 128):
            for column in range(0, tensor.shape[1], 128):
                block = tensor[row : row + 128, column : column + 128]
                scale = 448 / block.abs().max() if block.any() else torch.tensor(1.0)
                assert found[key + "_scale_inv"][row // 128, column // 128] == 1 / scale
                part = found[key][row : row + 128, column : column + 128]
                wanted = (block * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
                assert same_bits(part.contiguous(), wanted.contiguous())
    for value, said in ((float("inf"), "1 of whose numbers are not finite"),
                        (float("nan"), "1 of whose numbers are not finite"),
                        (1e-39, "whose numbers are too small")):  # fmt: skip
        bad = {key: tensor.clone() for key, tensor in model.items()}
        weight = bad["decoder.layers.0.mlp.linear_fc2.weight"]
        weight[:128, :128] = 0
        weight[3, 5] = value
        source = write_checkpoint(tmp_path / str(value), bad, args)
        line = refuse(UNSUPPORTED, "ckpt-convert", source, tmp_path / "x", *names, "--dtype",
                      "fp8-block128")  # fmt: skip
        assert "'model.layers.0.mlp.down_proj.weight': has no scale for a block of rows 0" in line
        assert said in line
        assert not (tmp_path / "x").exists()
    rows = (
        ("gpt_oss", ["--to", "huggingface", "--dtype", "fp8-block128"], UNSUPPORTED,
         "in one tensor"),
        ("llama", [*names, "--dtype", "*proj*=fp8-block128"], USAGE, "of all linear layers"),
        ("llama", ["--to", "torch", "--model-only", "--dtype", "fp8-block128"], USAGE,
         "Hugging Face folder alone"),
        ("llama", [*names, "--dtype", "mxfp4"], USAGE, "float16 and fp8-block128"),
    )  # fmt: skip
    for family, options, code, said in rows:
        source = tmp_path / family
        if not source.exists():
            write_checkpoint(source, megatron_model(sets, family), ARGS[family])
        line = refuse(code, "ckpt-convert", source, tmp_path / "x", *options)
        assert said in line, line

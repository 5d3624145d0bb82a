"""ckpt-convert merge-adapter: LoRA in the weights of a Hugging Face folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from huggingface_sets import tensors_of, unpack
from programs import refuse, succeed

UNSUPPORTED = 4
Q, UP, EMBED = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj",
                "model.embed_tokens")  # fmt: skip
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "bias": "none", "fan_in_fan_out": False,
          "use_rslora": False, "use_dora": False, "target_modules": ["q_proj", "up_proj"],
          "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}}  # fmt: skip


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("adapters"))


def adapter(to: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    to.mkdir()
    (to / "adapter_config.json").write_text(json.dumps({**CONFIG, **fields}))
    save_file({f"base_model.model.{key}": tensor.contiguous() for key, tensor in tensors.items()},
              to / "adapter_model.safetensors")  # fmt: skip
    return to


def factors(module: str, rows: int, columns: int, rank: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    return {f"{module}.lora_A.weight": torch.randn(rank, columns, generator=generator),
            f"{module}.lora_B.weight": torch.randn(rows, rank, generator=generator)}  # fmt: skip


def product(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    a, b = (tensors[f"{module}.lora_{one}.weight"].double() for one in "AB")
    return b @ a


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_added_and_rounded_once(
    sets: Path, dtype: torch.dtype, tmp_path: Path
) -> None:
    own = {key: tensor.to(dtype) for key, tensor in tensors_of(sets / "llama_hf").items()}
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text((sets / "llama_hf/config.json").read_text())
    save_file(own, base / "model.safetensors", metadata={"format": "pt"})
    changes = {**factors(Q, 32, 32), **factors(UP, 64, 32, 2),
               f"{EMBED}.lora_embedding_A": torch.randn(4, 128),
               f"{EMBED}.lora_embedding_B": torch.randn(32, 4),
               "lm_head.weight": torch.randn(128, 32)}  # fmt: skip
    lora = adapter(tmp_path / "lora", changes, rank_pattern={"up_proj": 2},
                   alpha_pattern={"layers.1.mlp.up_proj": 3})  # fmt: skip
    merged = tmp_path / "merged"
    done = succeed("ckpt-convert", "merge-adapter", base, lora, "-o", merged, "--verify")
    assert "as in the base with the adapter's 4 changes" in done.stdout
    found = tensors_of(merged)
    embedding = (changes[f"{EMBED}.lora_embedding_B"].double()
                 @ changes[f"{EMBED}.lora_embedding_A"].double()).T  # fmt: skip
    added = {f"{Q}.weight": 4 * product(changes, Q), f"{UP}.weight": 1.5 * product(changes, UP),
             f"{EMBED}.weight": 4 * embedding}  # fmt: skip
    assert found.keys() == own.keys()
    for key, tensor in own.items():
        if key == "lm_head.weight":
            assert torch.equal(found[key], changes[key].to(dtype))
        elif key not in added:
            assert torch.equal(found[key], tensor), key
        else:
            exact = tensor.double() + added[key]
            step = 2.0**-23 if dtype == torch.float32 else 2.0**-8
            error = (found[key].double() - exact).abs()
            assert (error <= step * exact.abs() + 2.0**-18).all(), key
    assert (merged / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_scales_are_as_the_config_says(sets: Path, tmp_path: Path) -> None:
    own = tensors_of(sets / "llama_hf")[f"{Q}.weight"].double()
    changes = factors(Q, 32, 32)
    for number, (fields, scale) in enumerate((
        ({"use_rslora": True}, 16 / math.sqrt(4)), ({"lora_alpha": 2}, 0.5),
        ({"fan_in_fan_out": True}, 4))):  # fmt: skip
        lora = adapter(tmp_path / f"lora{number}", changes, **fields)
        merged = tmp_path / f"merged{number}"
        succeed("ckpt-convert", "merge-adapter", sets / "llama_hf", lora, "-o", merged)
        delta = scale * product(changes, Q)
        wanted = own + (delta.T if "fan_in_fan_out" in fields else delta)
        found = tensors_of(merged)[f"{Q}.weight"].double()
        assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-6)


def test_what_is_not_merged_is_refused_by_name(sets: Path, tmp_path: Path) -> None:
    changes = factors(Q, 32, 32)
    a, b = changes
    rows = (
        (changes, {"use_dora": True}, "use_dora': is true"),
        (changes, {"peft_type": "IA3"}, "peft_type': is \"IA3\""),
        (changes, {"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        (changes, {"alpha_pattern": {"q.*": 3}}, "alpha_pattern"),
        ({a: changes[a]}, {}, "has no twin"),
        ({**changes, "model.layers.9.x.lora_A.weight": torch.ones(4, 2)}, {}, "the base lacks"),
        (factors(Q, 16, 32), {}, "do not fit the base's [32, 32]"),
        ({**changes, f"{Q}.lora_magnitude_vector": torch.ones(32)}, {}, "is a part of LoRA"),
        ({"lm_head.weight": torch.ones(2, 32)}, {}, "has a different shape"),
        ({**changes, b: changes[b].to(torch.float8_e4m3fn)}, {}, "not of floating point"),
    )
    for number, (tensors, fields, said) in enumerate(rows):
        lora = adapter(tmp_path / str(number), tensors, **fields)
        line = refuse(UNSUPPORTED, "ckpt-convert", "merge-adapter", sets / "llama_hf", lora, "-o",
                      tmp_path / "x")  # fmt: skip
        assert said in line, line
    torch.save({"a": torch.ones(2)}, tmp_path / "plain.pt")
    line = refuse(UNSUPPORTED, "ckpt-convert", "merge-adapter", tmp_path / "plain.pt",
                  tmp_path / "0", "-o", tmp_path / "x")  # fmt: skip
    assert "is neither a Hugging Face folder nor a training checkpoint" in line


def test_peft_and_the_merged_folder_have_the_same_logits(sets: Path, tmp_path: Path) -> None:
    """Where peft is: `pip install --no-deps peft`."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    ids = torch.arange(1, 33).view(1, -1) * 5 % 128
    for family, modules in (("llama", "all-linear"), ("qwen3_moe", ["q_proj", "k_proj"])):
        folder, out = sets / f"{family}_hf", tmp_path / family
        out.mkdir()
        torch.manual_seed(1)
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=modules,
                                 init_lora_weights=False, use_rslora=family == "llama")  # fmt: skip
        base = AutoModelForCausalLM.from_pretrained(folder, **options)
        model = peft.get_peft_model(base, config).eval()
        model.save_pretrained(out / "lora")
        with torch.no_grad():
            wanted = model(ids).logits
        succeed("ckpt-convert", "merge-adapter", folder, out / "lora", "-o", out / "merged")
        merged = AutoModelForCausalLM.from_pretrained(out / "merged", **options).eval()
        with torch.no_grad():
            found = merged(ids).logits
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert load_file(out / "merged/model.safetensors").keys() == tensors_of(folder).keys()


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_a_checkpoint_gets_what_its_export_would_get(
    sets: Path, family: str, tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    own = {key: tensor.bfloat16() for key, tensor in tensors_of(sets / f"{family}_hf").items()}
    for key in (EMBED + ".weight", "lm_head.weight"):
        own[key] = own[key][:121].clone()
    config = json.loads((sets / f"{family}_hf/config.json").read_text())
    config.update(vocab_size=121, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})
    linears = {key.removesuffix(".weight"): tensor for key, tensor in own.items()
               if "1.self_attn.o_proj" in key or "0.mlp.up" in key or "1.mlp.experts.2.up" in key
               or "0.self_attn.k_proj" in key or "kv_b_proj" in key}  # fmt: skip
    assert len(linears) >= 3
    changes = {key: value for module, tensor in linears.items()
               for key, value in factors(module, *tensor.shape).items()}  # fmt: skip
    changes |= {f"{EMBED}.lora_embedding_A": torch.randn(4, 121),
                f"{EMBED}.lora_embedding_B": torch.randn(32, 4),
                "lm_head.weight": torch.randn(121, 32)}  # fmt: skip
    lora = adapter(tmp_path / "lora", changes)
    succeed("ckpt-convert", "merge-adapter", folder, lora, "-o", tmp_path / "wanted")
    names = ("--names", family)
    for form, sizes in (("torch", ("--tp", 2, "--pp", 2)), ("torch_dist", ("--tp", 2))):
        if family != "llama":
            sizes = ("--tp", 2, "--ep", 2, "--etp", 1)
        base, merged, out = (tmp_path / f"{form}_{name}" for name in ("base", "merged", "out"))
        succeed("ckpt-convert", folder, base, "--to", form, *sizes)
        done = succeed("ckpt-convert", "merge-adapter", base, lora, "-o", merged, "--verify",
                       *names)  # fmt: skip
        assert f"with the adapter's {len(linears) + 2} changes" in done.stdout, done.stdout
        succeed("ckpt-convert", merged, out, "--to", "huggingface", *names)
        wanted = (tmp_path / "wanted/model.safetensors").read_bytes()
        assert (out / "model.safetensors").read_bytes() == wanted
        assert json.loads((out / "config.json").read_text())["vocab_size"] == 121
    line = refuse(UNSUPPORTED, "ckpt-convert", "merge-adapter", base,
                  adapter(tmp_path / "far", factors("model.layers.9.x", 32, 32)), "-o",
                  tmp_path / "x", *names)  # fmt: skip
    assert "the base lacks" in line

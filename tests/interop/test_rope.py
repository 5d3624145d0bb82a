"""Rotary embeddings of an export are Megatron-Core's, scaled ones, too."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from megatron.core.models.common.embeddings import YarnRotaryEmbedding, _yarn_get_mscale
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from transformers import AutoConfig, AutoModelForCausalLM

from huggingface_sets import ARGS
from name_tables import Names, config_of, read_table

LENGTH = 300
CASES = {
    "llama": ("llama", {}),
    "llama 3": ("llama", {"use_rope_scaling": True, "rotary_base": 500000, "kv_channels": 64}),
    "llama 3.2": (
        "llama",
        {"use_rope_scaling": True, "rope_scaling_factor": 32.0, "kv_channels": 128},
    ),
    "latent, rope": ("deepseek_v3", {}),
    "latent, yarn": (
        "deepseek_v3",
        {"rope_type": "yarn", "rotary_scaling_factor": 40, "mscale_all_dim": 1.0},
    ),
    "latent, yarn by default": (
        "deepseek_v3",
        {"rope_type": None, "rotary_scaling_factor": 4.0, "qk_pos_emb_head_dim": 64},
    ),
    "latent, yarn of one scale": (
        "deepseek_v3",
        {"rope_type": "yarn", "rotary_scaling_factor": 40, "mscale": 0.7, "mscale_all_dim": 0.7,
         "original_max_position_embeddings": 64, "beta_fast": 16, "qk_pos_emb_head_dim": 64},
    ),
    "sinks, yarn": ("gpt_oss", {"kv_channels": 64}),
    "sinks, yarn by default": (
        "gpt_oss",
        {"kv_channels": 64, "rotary_scaling_factor": 4.0, "yarn_beta_fast": None,
         "yarn_correction_range_round_to_int": None, "yarn_original_max_position_embeddings": 64},
    ),
    "sinks, rope": ("gpt_oss", {"position_embedding_type": "rope"}),
}  # fmt: skip


def embedding_of_megatron(args: dict) -> tuple[torch.Tensor, float]:
    """Angles and their scale, as GPTModel and MLASelfAttention ask for them."""
    is_latent, base = args["multi_latent_attention"], args["rotary_base"]
    size = args["qk_pos_emb_head_dim"] if is_latent else args["kv_channels"]
    is_yarn = args.get("rope_type") != "rope" if is_latent else False
    if is_yarn or args["position_embedding_type"] == "yarn":
        prefix = "" if is_latent else "yarn_"
        stated = {
            name: args.get(prefix + name)
            for name in ("original_max_position_embeddings", "beta_fast", "beta_slow")
        }
        stated["correction_range_round_to_int"] = args.get("yarn_correction_range_round_to_int")
        return YarnRotaryEmbedding(
            size, rotary_base=base, scaling_factor=args["rotary_scaling_factor"],
            mscale=args["mscale"], mscale_all_dim=args["mscale_all_dim"],
            use_cpu_initialization=True,
            **{name: value for name, value in stated.items() if value is not None},
        )(LENGTH)  # fmt: skip
    rope = RotaryEmbedding(
        size, 1.0, rotary_base=base, rope_scaling=args["use_rope_scaling"] and not is_latent,
        rope_scaling_factor=args["rope_scaling_factor"], use_cpu_initialization=True,
    )  # fmt: skip
    return rope(LENGTH), 1.0


@pytest.mark.parametrize("case", CASES)
def test_angles_and_scales_are_those_of_megatron(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    family, changes = CASES[case]
    args, table = {**ARGS[family], **changes}, read_table(family)
    for name, needed in table["requires"].items():
        assert Names(table, args, {}).value(needed), name
    (tmp_path / "config.json").write_text(json.dumps(config_of(table, args, 128, "float32")))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).model
    cos, sin = model.rotary_emb(torch.zeros(1), torch.arange(LENGTH).view(1, -1))
    angles, scale = embedding_of_megatron(args)
    angles = angles.view(LENGTH, -1)[:, : cos.shape[-1]]  # some have the first half alone
    assert torch.allclose(cos[0], angles.cos() * scale, atol=1e-4)
    assert torch.allclose(sin[0], angles.sin() * scale, atol=1e-4)
    if args["multi_latent_attention"]:
        whole = args["qk_head_dim"] + args["qk_pos_emb_head_dim"]
        scale = _yarn_get_mscale(args["rotary_scaling_factor"], args["mscale_all_dim"])
        found = model.layers[0].self_attn.scaling
        assert math.isclose(found, scale * scale / math.sqrt(whole), rel_tol=1e-9)

"""Tiny models in both forms, and Megatron checkpoints of them: tests/golden/huggingface."""

from __future__ import annotations

import re
import tarfile
from argparse import Namespace
from pathlib import Path

import torch
from safetensors.torch import load_file

from programs import GOLDEN

# What Megatron-LM's args of a run that trains these models say; all others as they are by default.
DENSE = dict(
    num_layers=2, hidden_size=32, num_attention_heads=4, group_query_attention=True,
    num_query_groups=2, kv_channels=8, ffn_hidden_size=64, normalization="RMSNorm",
    layernorm_epsilon=1e-6, swiglu=True, add_bias_linear=False, add_qkv_bias=False,
    qk_layernorm=False, position_embedding_type="rope", rotary_base=10000, rotary_percent=1.0,
    use_rope_scaling=False, rope_scaling_factor=8.0, max_position_embeddings=64, vocab_size=128,
    padded_vocab_size=128, make_vocab_size_divisible_by=1, init_method_std=0.02,
    untie_embeddings_and_output_weights=True, window_size=None, window_attn_skip_freq=None,
    num_experts=None, multi_latent_attention=False, moe_ffn_hidden_size=None,
    softmax_type="vanilla", quick_geglu=False, glu_linear_offset=0.0,
    activation_func_clamp_value=None,
)  # fmt: skip
MOE = dict(
    DENSE, num_experts=4, moe_router_topk=2, moe_layer_freq=1, moe_ffn_hidden_size=16,
    moe_router_score_function="softmax", moe_router_pre_softmax=False,
    moe_router_enable_expert_bias=False, moe_router_topk_scaling_factor=None,
    moe_router_num_groups=None, moe_router_group_topk=None, moe_aux_loss_coeff=0.001,
    moe_shared_expert_intermediate_size=None, moe_router_load_balancing_type="aux_loss",
)  # fmt: skip
LATENT = dict(
    MOE, multi_latent_attention=True, qk_layernorm=True, group_query_attention=False,
    q_lora_rank=16, kv_lora_rank=16, qk_head_dim=8, qk_pos_emb_head_dim=4, v_head_dim=8,
    rope_type="rope", mscale=1.0, mscale_all_dim=0.0, rotary_scaling_factor=1.0,
    moe_layer_freq=[0, 1], moe_aux_loss_coeff=0.0, moe_shared_expert_intermediate_size=16,
    moe_router_score_function="sigmoid", moe_router_num_groups=1, moe_router_group_topk=1,
    moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5,
)  # fmt: skip
SINKS = dict(
    MOE, moe_ffn_hidden_size=64, add_bias_linear=True, add_qkv_bias=True, layernorm_epsilon=1e-5,
    swiglu=False, quick_geglu=True, glu_linear_offset=1.0, activation_func_clamp_value=7.0,
    softmax_type="learnable", window_size=(7, 0), window_attn_skip_freq=2, rotary_base=150000,
    position_embedding_type="yarn", rotary_scaling_factor=32.0, yarn_beta_fast=32.0,
    yarn_original_max_position_embeddings=4096, yarn_beta_slow=1.0, mscale=1.0,
    mscale_all_dim=0.0, yarn_correction_range_round_to_int=False,
)  # fmt: skip
# Megatron-Bridge alone trains it: Megatron-LM has no arguments for local angles and the scalar.
GEMMA = dict(
    DENSE, num_layers=6, hidden_size=16, ffn_hidden_size=32, swiglu=False, gated_linear_unit=True,
    openai_gelu=True, layernorm_zero_centered_gamma=True, qk_layernorm=True,
    untie_embeddings_and_output_weights=False, window_size=(7, 0), window_attn_skip_freq=6,
    rotary_base=1000000, rotary_base_local=10000, rotary_scaling_factor=8.0,
    query_pre_attn_scalar=16,
)  # fmt: skip
ARGS = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen2": dict(DENSE, add_qkv_bias=True),
    "qwen3": dict(DENSE, qk_layernorm=True),
    "qwen3_moe": dict(MOE, qk_layernorm=True),
    "mixtral": dict(MOE, moe_ffn_hidden_size=64, layernorm_epsilon=1e-5, rotary_base=1000000),
    "deepseek_v3": LATENT,
    "gpt_oss": SINKS,
    "gemma3_text": GEMMA,
}


def unpack(folder: Path) -> Path:
    with tarfile.open(GOLDEN / "huggingface/sets.tar.xz") as sets:
        sets.extractall(folder)
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {key: tensor for file in files for key, tensor in load_file(file).items()}


def megatron_model(sets: Path, family: str) -> dict[str, torch.Tensor]:
    return torch.load(sets / f"{family}_megatron.pt")


# Norms that TransformerEngine's modules have in the layer behind them.
ENGINE = (
    ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
    ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    ("self_attention.q_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight"),
    ("self_attention.kv_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"),
)


GROUPED = re.compile(r"\.experts\.local_experts\.(\d+)\.(linear_fc\d\.\w+)")


def engine_names(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same model of TransformerEngine's modules, as its state dict orders them."""
    named = {}
    for key, tensor in model.items():
        for local, engine in ENGINE:
            linear = engine.rsplit(".", 1)[0] + ".weight"
            if key.endswith(local) and key.replace(local, linear) in model:
                key = key.replace(local, engine)
        named[GROUPED.sub(r".experts.\2\1", key)] = tensor
    return named


def write_checkpoint(
    folder: Path, model: dict[str, torch.Tensor], args: dict, implementation: str | None = None
) -> Path:
    """A folder of Megatron-LM's `torch` format at TP 1 and PP 1, saved without an optimizer."""
    if implementation is None:
        is_engine = any(key.endswith("linear_qkv.layer_norm_weight") for key in model)
        implementation = "transformer_engine" if is_engine else "local"
    sizes = dict.fromkeys(
        ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
         "expert_model_parallel_size", "data_parallel_size", "world_size"), 1)  # fmt: skip
    stated = Namespace(
        **sizes, virtual_pipeline_model_parallel_size=None, transformer_impl=implementation,
        ckpt_format="torch", params_dtype=torch.float32, seq_length=32, iteration=2,
        consumed_train_samples=0, moe_grouped_gemm=implementation != "local", **args)  # fmt: skip
    iteration = folder / "iter_0000002/mp_rank_00"
    iteration.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("2")
    state = {"args": stated, "checkpoint_version": 3.0, "iteration": 2, "model": model}
    torch.save(state, iteration / "model_optim_rng.pt")
    return folder

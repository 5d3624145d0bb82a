"""Megatron-Core's own GPTModel on the CPU, filled with the values of a case."""

from __future__ import annotations

import torch
import torch.nn.functional
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from golden.cases import Case, ModelShape
from golden.values import master_of


def transformer_config(shape: ModelShape) -> TransformerConfig:
    activation = torch.nn.functional.silu if shape.swiglu else torch.nn.functional.gelu
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        add_bias_linear=shape.add_bias_linear,
        add_qkv_bias=shape.add_qkv_bias,
        qk_layernorm=shape.qk_layernorm,
        gated_linear_unit=shape.swiglu,
        activation_func=activation,
        bias_activation_fusion=False,
        normalization=shape.normalization,
        num_moe_experts=shape.num_experts,
        use_cpu_initialization=True,
        bf16=True,
        params_dtype=torch.bfloat16,
    )


def build_model(case: Case) -> GPTModel:
    """The model in bf16, each weight the rounded master of its name."""
    shape = case.shape
    spec = get_gpt_layer_local_spec(
        num_experts=shape.num_experts,
        qk_layernorm=shape.qk_layernorm,
        normalization=shape.normalization,
    )
    model = GPTModel(
        config=transformer_config(shape),
        transformer_layer_spec=spec,
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_position_embeddings,
        position_embedding_type=shape.position_embedding_type,
        share_embeddings_and_output_weights=not shape.untie_embeddings_and_output_weights,
    ).bfloat16()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(master_of(case.name, name, tuple(parameter.shape), case.fresh))
            # What Megatron's Muon set-up marks, so that it can split queries, keys and values.
            if "linear_qkv.weight" in name and parameter.dim() == 2:
                parameter.is_qkv = True
    return model

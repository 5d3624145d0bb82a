"""Writes synthetic checkpoints of realistic shapes with PyTorch and Megatron-Core.

usage: bench_checkpoint.py DIR [--size 512m|2g|8g|tiny]

    DIR/model.pt, DIR/dcp
        a plain state dict in both formats: a GPT-like model in bf16 and, for the first third of its
        parameters, Adam's fp32 state, as one data-parallel rank would hold it
    DIR/lw_torch_dp2, DIR/lw_torch_dist_dp2
        one state of Megatron's layer-wise optimizer, saved by two ranks in both formats, of about
        as many bytes

The numbers are random, the seeds are fixed: the same arguments give the same tensors.
"""
import argparse
import logging
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

SHARE_WITH_STATE = 0.30


@dataclass(frozen=True)
class Size:
    hidden: int
    ffn: int
    key_value: int  # width of keys, and of values
    vocabulary: int
    plain_layers: int
    megatron_layers: int


SIZES = {
    "512m": Size(768, 2048, 192, 16000, 12, 3),
    "2g": Size(1024, 2816, 256, 32000, 24, 8),
    "8g": Size(2048, 5632, 256, 32000, 28, 12),
    "tiny": Size(256, 512, 64, 1000, 4, 2),
}


def layer_shapes(size, layer):
    prefix = f"decoder.layers.{layer}."
    return {
        prefix + "self_attention.linear_qkv.weight": (
            size.hidden + 2 * size.key_value, size.hidden),
        prefix + "self_attention.linear_proj.weight": (size.hidden, size.hidden),
        prefix + "mlp.linear_fc1.weight": (2 * size.ffn, size.hidden),
        prefix + "mlp.linear_fc2.weight": (size.hidden, size.ffn),
        prefix + "input_layernorm.weight": (size.hidden,),
        prefix + "pre_mlp_layernorm.weight": (size.hidden,),
    }


def model_shapes(size):
    shapes = {"embedding.word_embeddings.weight": (size.vocabulary, size.hidden)}
    for layer in range(size.plain_layers):
        shapes.update(layer_shapes(size, layer))
    shapes["decoder.final_layernorm.weight"] = (size.hidden,)
    shapes["output_layer.weight"] = (size.vocabulary, size.hidden)
    return shapes


def make_state(size):
    generator = torch.Generator().manual_seed(1)
    shapes = model_shapes(size)
    state = {f"model.{name}": torch.randn(shape, generator=generator).mul_(0.02).bfloat16()
             for name, shape in shapes.items()}
    budget = SHARE_WITH_STATE * sum(torch.Size(shape).numel() for shape in shapes.values())
    for name, shape in shapes.items():
        if name.startswith("embedding"):
            continue
        budget -= torch.Size(shape).numel()
        if budget < 0:
            break
        for kind in ("fp32_param", "exp_avg", "exp_avg_sq"):
            state[f"optimizer.state.{kind}.{name}"] = torch.rand(shape, generator=generator)
    return state


def write_plain(size, folder):
    state = make_state(size)
    torch.save(state, folder / "model.pt")
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)


def megatron_case(size):
    from golden.cases import Case, ModelShape

    shape = ModelShape(
        num_layers=size.megatron_layers,
        hidden_size=size.hidden,
        ffn_hidden_size=size.ffn,
        num_attention_heads=size.hidden // 64,
        num_query_groups=size.key_value // 64,
        vocab_size=size.vocabulary,
        add_bias_linear=False,
        add_qkv_bias=False,
        swiglu=True,
        normalization="RMSNorm",
        position_embedding_type="rope",
    )
    return Case("lw", "for scripts/bench", shape, dp_sizes=(2,))


def write_megatron(size, folder):
    warnings.filterwarnings("ignore")  # of a machine without CUDA and TransformerEngine
    logging.disable(logging.WARNING)
    import make_golden

    make_golden.write_megatron([megatron_case(size)], folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="2g")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(options.folder / "dcp", ignore_errors=True)
    write_plain(SIZES[options.size], options.folder)
    write_megatron(SIZES[options.size], options.folder)


if __name__ == "__main__":
    main()

"""Writes a synthetic checkpoint of realistic shapes with PyTorch: DIR/model.pt and DIR/dcp.

usage: bench_checkpoint.py DIR [--layers N]     24 layers are 1.9 GB in each of the two formats

A GPT-like model in bf16 and, for the first third of its parameters, Adam's fp32 state, as one data
parallel rank would hold it. The numbers are random, the seed is fixed.
"""
import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

HIDDEN, FFN, VOCABULARY, KEY_VALUE = 1024, 2816, 32000, 256
SHARE_WITH_STATE = 0.30


def layer_shapes(layer):
    prefix = f"decoder.layers.{layer}."
    return {
        prefix + "self_attention.linear_qkv.weight": (HIDDEN + 2 * KEY_VALUE, HIDDEN),
        prefix + "self_attention.linear_proj.weight": (HIDDEN, HIDDEN),
        prefix + "mlp.linear_fc1.weight": (2 * FFN, HIDDEN),
        prefix + "mlp.linear_fc2.weight": (HIDDEN, FFN),
        prefix + "input_layernorm.weight": (HIDDEN,),
        prefix + "pre_mlp_layernorm.weight": (HIDDEN,),
    }


def model_shapes(layer_count):
    shapes = {"embedding.word_embeddings.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layer_count):
        shapes.update(layer_shapes(layer))
    shapes["decoder.final_layernorm.weight"] = (HIDDEN,)
    shapes["output_layer.weight"] = (VOCABULARY, HIDDEN)
    return shapes


def make_state(layer_count):
    generator = torch.Generator().manual_seed(1)
    shapes = model_shapes(layer_count)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    state = make_state(options.layers)
    torch.save(state, options.folder / "model.pt")
    dcp.save(state, checkpoint_id=options.folder / "dcp", no_dist=True)


if __name__ == "__main__":
    main()

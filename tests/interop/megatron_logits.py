"""The largest difference between logits of Megatron-Core's model of a generated case, on the CPU in
fp32, and those of a Hugging Face folder, and the largest logit. usage: CASE FOLDER"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from pathlib import Path

import torch
from megatron.core import parallel_state, tensor_parallel
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import golden.model  # noqa: E402
from golden.cases import MEGATRON_CASES  # noqa: E402

CONFIG_OF = golden.model.transformer_config


def in_fp32(shape):
    return dataclasses.replace(CONFIG_OF(shape), bf16=False, params_dtype=torch.float32)


def main(name: str, folder: str, meeting: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}/point", rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel()
    torch.cuda.current_device = lambda: torch.device("cpu")
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    golden.model.transformer_config = in_fp32
    case = next(case for case in MEGATRON_CASES if case.name == name)
    ours = golden.model.build_model(case).float().eval()
    length = case.shape.max_position_embeddings
    ids = torch.arange(1, length + 1).view(1, -1) * 5 % case.shape.vocab_size
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1).view(1, 1, length, length)
    other = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        wanted = ours(ids, torch.arange(length).view(1, -1), hidden)
        found = other.eval()(ids).logits
    print((found - wanted).abs().max().item(), wanted.abs().max().item())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as meeting:
        main(*sys.argv[1:], meeting)

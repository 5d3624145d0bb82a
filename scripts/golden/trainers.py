"""Writes small runs of other trainers, with three checkpoints each (tests/golden/trainers.tar.xz).

usage: torchrun --nproc-per-node 2 trainers.py OUT

hf_trainer   transformers' Trainer on a tiny Llama, rank 0 alone; its loss is NaN after step 4
torchtitan   FSDP2 over two ranks, saved by torch.distributed.checkpoint as torchtitan does: model,
             optimizer state by names, learning-rate schedule, counters
"""
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                     get_optimizer_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = (2, 4, 6)


def hf_trainer(out):
    import transformers

    class Blowing(transformers.Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * float("nan") if self.state.global_step >= STEPS[1] else loss

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16)
    model = transformers.LlamaForCausalLM(config)
    rows = [{"input_ids": torch.randint(0, 32, (8,)), "labels": torch.randint(0, 32, (8,))}
            for _ in range(8)]
    Blowing(model, transformers.TrainingArguments(
        out, max_steps=STEPS[-1], save_steps=STEPS[0], per_device_train_batch_size=2,
        learning_rate=1e-3, use_cpu=True, report_to=[], logging_nan_inf_filter=False,
        seed=1), train_dataset=rows).train()


def torchtitan(out, rank, ranks):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 16),
                                torch.nn.LayerNorm(16), torch.nn.Linear(16, 32))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(1, STEPS[-1] + 1):
        torch.manual_seed(step * ranks + rank)
        model(torch.randint(0, 32, (4, 8))).square().mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step not in STEPS:
            continue
        state = dict(get_model_state_dict(model))
        state |= get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        state |= {"lr_scheduler": schedule.state_dict(),
                  "step": torch.tensor(step, dtype=torch.int32),
                  "ntokens_seen": torch.tensor(step * ranks * 32)}
        dcp.save(state, checkpoint_id=f"{out}/step-{step}")


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torchtitan(out / "torchtitan", dist.get_rank(), dist.get_world_size())
    is_first = dist.get_rank() == 0
    dist.barrier()
    dist.destroy_process_group()
    if is_first:
        torch.manual_seed(0)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        hf_trainer(str(out / "hf_trainer"))


if __name__ == "__main__":
    main()

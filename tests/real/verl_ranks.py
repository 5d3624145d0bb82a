"""verl's own FSDPCheckpointManager saves, and loads what we made: docs/records/compatibility.md.

By hand. usage: torchrun --nproc-per-node W verl_ranks.py save|load FOLDER OUT.pt [SHARDS]

`save` takes two steps of a small Llama under FSDP2 (HSDP with SHARDS), saves FOLDER, takes another.
`load` loads FOLDER and takes the third step. OUT.pt has the whole state before and after that step;
two of them are equal to the bit where nothing was lost. verl (of January 2026, in PYTHONPATH with
tensordict and ray) wants a transformers that has AutoModelForVision2Seq.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import LlamaConfig, LlamaForCausalLM
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager


def whole(value: object) -> object:
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.clone() if isinstance(value, torch.Tensor) else value


def main(mode: str, folder: str, out: str, shards: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=12, intermediate_size=22, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32))
    mesh = init_device_mesh("cpu", (ranks // shards, shards), mesh_dim_names=("ddp", "fsdp")) \
        if shards else init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    for layer in net.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    params = list(net.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [one for one in params if one.ndim > 1], "weight_decay": 0.1},
         {"params": [one for one in params if one.ndim == 1], "weight_decay": 0.0}], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    manager = FSDPCheckpointManager(net, optimizer, scheduler, checkpoint_config=None)

    def step(number: int) -> None:
        for i, param in enumerate(params):
            torch.manual_seed(1000 * number + i)
            param.grad = distribute_tensor(torch.randn(param.shape), param.device_mesh,
                                           param.placements, src_data_rank=None)
        optimizer.step()
        scheduler.step()

    def state() -> dict:
        return whole({"model": dict(net.state_dict()), "optim": optimizer.state_dict(),
                      "lr_scheduler": scheduler.state_dict()})

    if mode == "save":
        step(1), step(2)
        torch.manual_seed(77 + rank)
        manager.save_checkpoint(folder, global_step=2)
    else:
        manager.load_checkpoint(folder)
    before, rng = state(), torch.get_rng_state().clone()
    is_kept = torch.equal(rng, torch.manual_seed(77 + rank).get_state())
    print(f"rank {rank}: the random state is {'' if is_kept else 'not '}the saved one", flush=True)
    step(3)
    after = state()
    if rank == 0:
        torch.save({"before": before, "after": after}, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]) if len(sys.argv) > 4 else 0)

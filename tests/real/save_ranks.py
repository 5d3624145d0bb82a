"""What FSDP's ranks save, as verl names it, and the whole state: for docs/records/compatibility.md.

By hand. usage: torchrun --nproc-per-node W save_ranks.py OUT fsdp|hsdp|tp|fsdp1

OUT gets {model,optim,extra_state}_world_size_W_rank_R.pt, OUT.live.pt what full_tensor() gives.
`ckpt-convert OUT OUT.pt --to torch` has to be equal to that under `model` and `optim`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.up = nn.Linear(12, 22, bias=False)
        self.down = nn.Linear(22, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(29, 12)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.out = nn.Linear(12, 29)
        self.register_buffer("scale", torch.tensor([1.5]))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.out(x) * self.scale


def sharded(mode: str) -> nn.Module:
    net, ranks = Net(), dist.get_world_size()
    if mode == "fsdp1":
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    sizes, names = {"fsdp": ((ranks,), ("fsdp",)), "hsdp": ((2, ranks // 2), ("ddp", "fsdp")),
                    "tp": ((ranks // 2, 2), ("fsdp", "tp"))}[mode]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    data = mesh[tuple(name for name in names if name != "tp")]
    for layer in net.layers:
        if mode == "tp":
            parallelize_module(layer, mesh["tp"],
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=data)
    return fully_shard(net, mesh=data)


def whole(value: object) -> object:
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    if type(value).__name__ == "ShardedTensor":
        gathered = torch.zeros(value.size()) if dist.get_rank() == 0 else None
        value.gather(0, gathered)
        return gathered
    return value


def states_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
    if not isinstance(net, FullyShardedDataParallel):
        return net.state_dict(), optimizer.state_dict()
    with FullyShardedDataParallel.state_dict_type(
        net, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True),
        ShardedOptimStateDictConfig(offload_to_cpu=True)):
        return net.state_dict(), FullyShardedDataParallel.optim_state_dict(net, optimizer)


def main() -> None:
    out, mode = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = sharded(mode)
    matrices = [param for param in net.parameters() if param.ndim > 1]
    others = [param for param in net.parameters() if param.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=1e-2, foreach=False)
    for step in range(3):
        torch.manual_seed(10 * step + (0 if mode == "tp" else rank))
        net(torch.randint(0, 29, (2, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    out.mkdir(exist_ok=True)
    model, state = states_of(net, optimizer)
    extra = {"lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": torch.get_rng_state()}}
    for kind, saved in (("model", model), ("optim", state), ("extra_state", extra)):
        torch.save(saved, out / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    live = {"model": whole(model), "optim": whole(state)}
    if rank == 0:
        torch.save(live, out.with_suffix(".live.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

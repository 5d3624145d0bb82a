#!/usr/bin/env python3
"""Writes tests/golden/torch_checkpointing.tar.xz by Meta's torch_checkpointing, on CPUs.

usage: rank_metadata.py OUT     (in PYTHONPATH: torch >= 2.11, torch_checkpointing 0.1.1)

Four ranks over Gloo hold one model, FSDP2 over two by tensor parallelism of two. The package is as
it is, but that it gathers what ranks know of their tensors through Gloo instead of through CUDA.
Each set has the folder and `whole.safetensors`, the tensors of the live model and optimizer, whole:

  torch        items as torch.save files, the default
  safetensors  the model as safetensors, the step as JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

RANKS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 6)
        self.up = nn.Linear(6, 22, bias=False)
        self.down = nn.Linear(22, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("seen", torch.tensor([3, 4]))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(tokens) + self.down(self.up(self.words(tokens))))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    net = parallelize_module(Net(), mesh["tp"], plan)
    fully_shard(net, mesh=mesh["fsdp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(3):
        net(torch.arange(8) + step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def whole(value: object, place: str, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            whole(each, f"{place}.{key}" if place else str(key), found)
    elif isinstance(value, torch.Tensor):
        full = value.full_tensor() if isinstance(value, DTensor) else value
        found[place] = full.detach().clone().contiguous()


def gathered(self, data: object, process_group: object = None) -> dict[int, object]:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, data)
    return dict(enumerate(everyone))


def run(rank: int, out: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=RANKS)
    from torch_checkpointing import CheckpointManager, ItemSpec, metadata_manager
    from torch_checkpointing.checkpoint_layout import (
        JsonSerialization,
        LayoutInfo,
        SafetensorsSerialization,
    )
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    metadata_manager.DefaultMetadataManager._all_gather_pickled_data = gathered
    net, optimizer = trained()
    model, states = net.state_dict(), optimizer.state_dict()
    found: dict[str, torch.Tensor] = {}
    whole({"model": model, "optimizer": states["state"]}, "", found)
    resharded = {"resharder": DefaultResharder()}
    as_safetensors = LayoutInfo("model/part-{rank}.safetensors", SafetensorsSerialization())
    sets = {
        "torch": {"model": ItemSpec(**resharded), "optimizer": ItemSpec(**resharded)},
        "safetensors": {"model": ItemSpec(layout=as_safetensors, **resharded),
                        "optimizer": ItemSpec(**resharded),
                        "progress": ItemSpec(layout=LayoutInfo("progress_{rank}.json",
                                                               JsonSerialization()))},
    }
    for name, items in sets.items():
        folder = out / name / "step-3"
        manager = CheckpointManager(CheckpointManager.Config(
            items=items, save=SyncCheckpointSaverConfig(),
            storage_config=LocalFileSystemStorageConfig(use_direct_io=False)))
        payload = {"model": model, "optimizer": states, "train": {"step": 3, "rank": rank}}
        if "progress" in items:
            payload["progress"] = {"tokens": 24}
        manager.save(str(folder), payload)
        manager.close()
        dist.barrier()
        if rank == 0:
            save_file(found, out / name / "whole.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True)
    multiprocessing.start_processes(run, args=(out,), nprocs=RANKS, start_method="fork")
    (out / "store").unlink(missing_ok=True)


if __name__ == "__main__":
    main()

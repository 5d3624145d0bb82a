"""Folders as programs leave them, each with the part that every file has in it.

Written here with torch and safetensors, under the names and with the kinds of content of the
programs: transformers' Trainer, Accelerate, PEFT, DeepSpeed, PyTorch's DCP. Megatron's are the
golden samples.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from programs import GOLDEN


class Part(Enum):
    """What a file is to the checkpoint."""

    DATA = "holds tensors that other files name"
    KEY = "says what there is: without it nothing can be listed"
    ALONE = "all that there is: without it the folder holds no checkpoint"
    BESIDE = "lies beside, with a checksum"
    BESIDE_PLAIN = "lies beside, is parsed, and has no checksum"
    UNREAD = "lies beside, and is not read"


@dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[[Path], None]
    parts: dict[str, Part]
    converts_to: str = "torch_dist"


def model(seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layers.{i}.weight": torch.rand(16, 24, generator=generator) for i in range(6)}


def optimizer_state(steps: int = 1) -> dict:
    weights = [torch.nn.Parameter(value) for value in model().values()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = optimizer.state_dict()
    for of_weight in state["state"].values():
        of_weight["step"].fill_(steps)
    return state


def random_states() -> dict:
    return {"python": random.Random(1).getstate(), "torch": torch.get_rng_state()}


TRAINER_STATE = {"global_step": 500, "log_history": [{"loss": float("nan"), "step": i}
                                                     for i in range(60)]}


def add_trainer_files(folder: Path) -> None:
    torch.save(optimizer_state(500), folder / "optimizer.pt")
    torch.save({"last_epoch": 500, "_last_lr": [0.1] * 100}, folder / "scheduler.pt")
    torch.save(random_states(), folder / "rng_state.pth")
    torch.save({"learning_rate": 0.1, "notes": "x" * 900}, folder / "training_args.bin")
    (folder / "trainer_state.json").write_text(json.dumps(TRAINER_STATE, indent=2))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 24, "pad": ["x" * 10] * 100}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n" * 80)


TRAINER_PARTS = {
    "optimizer.pt": Part.BESIDE,
    "scheduler.pt": Part.BESIDE,
    "rng_state.pth": Part.BESIDE,
    "training_args.bin": Part.BESIDE,
    "trainer_state.json": Part.BESIDE_PLAIN,
    "config.json": Part.BESIDE_PLAIN,
    "merges.txt": Part.UNREAD,
}


def make_trainer(folder: Path) -> None:
    save_file(model(), folder / "model.safetensors", metadata={"format": "pt"})
    add_trainer_files(folder)


SHARDS = 3
SHARD_NAMES = [f"model-{i + 1:05}-of-{SHARDS:05}.safetensors" for i in range(SHARDS)]
INDEX = "model.safetensors.index.json"


def make_sharded_trainer(folder: Path) -> None:
    weights = model()
    keys = list(weights)
    weight_map = {key: SHARD_NAMES[i % SHARDS] for i, key in enumerate(keys)}
    for name in SHARD_NAMES:
        save_file({key: weights[key] for key in keys if weight_map[key] == name}, folder / name,
                  metadata={"format": "pt"})
    total = sum(value.numel() * 4 for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    add_trainer_files(folder)


def make_accelerate(folder: Path) -> None:
    save_file(model(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(optimizer_state(), folder / "optimizer.bin", _use_new_zipfile_serialization=False)
    torch.save({"last_epoch": 1, "_last_lr": [0.1] * 100}, folder / "scheduler.bin")
    torch.save({"epoch": 3, "pad": "x" * 900}, folder / "sampler.bin")
    (folder / "random_states_0.pkl").write_bytes(pickle.dumps(random_states()["python"]))
    torch.save(random_states(), folder / "custom_checkpoint_0.pkl")


def make_adapter(folder: Path) -> None:
    save_file(model(2), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "pad": ["x" * 10] * 100}))
    (folder / "README.md").write_text("---\nbase_model: x\n---\n" * 60)


def make_deepspeed(folder: Path) -> None:
    """What a Trainer under DeepSpeed adds: rank files in a subfolder."""
    make_trainer(folder)
    below = folder / "global_step500"
    below.mkdir()
    torch.save({"module": model()}, below / "mp_rank_00_model_states.pt")
    torch.save(optimizer_state(), below / "zero_pp_rank_0_mp_rank_00_optim_states.pt")


def make_dcp(folder: Path) -> None:
    dcp.save({"model": model(), "optimizer": {"step": 3}}, checkpoint_id=folder)
    torch.save({"epoch": 3, "pad": "x" * 900}, folder / "extra_state.pt")
    (folder / "train.json").write_text(json.dumps(TRAINER_STATE))


def golden(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        source = next((GOLDEN / name).rglob("iter_0000003"))
        for path in source.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copy(path, folder)

    return make


ALONE = {"model.safetensors": Part.ALONE}
KINDS = (
    Kind("trainer", make_trainer, ALONE | TRAINER_PARTS),
    Kind("sharded_trainer", make_sharded_trainer,
         {INDEX: Part.KEY, **dict.fromkeys(SHARD_NAMES, Part.DATA), **TRAINER_PARTS}),
    Kind("accelerate", make_accelerate, ALONE | {
        "optimizer.bin": Part.BESIDE_PLAIN, "scheduler.bin": Part.BESIDE,
        "sampler.bin": Part.BESIDE, "random_states_0.pkl": Part.BESIDE_PLAIN,
        "custom_checkpoint_0.pkl": Part.BESIDE}),
    Kind("adapter", make_adapter, {
        "adapter_model.safetensors": Part.ALONE, "adapter_config.json": Part.BESIDE_PLAIN,
        "README.md": Part.UNREAD}),
    Kind("deepspeed", make_deepspeed, ALONE | TRAINER_PARTS | {
        "global_step500/mp_rank_00_model_states.pt": Part.BESIDE,
        "global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt": Part.BESIDE}),
    Kind("dcp", make_dcp, {
        ".metadata": Part.KEY, "__0_0.distcp": Part.DATA, "extra_state.pt": Part.BESIDE,
        "train.json": Part.BESIDE_PLAIN}, "torch"),
    Kind("megatron_torch", golden("lw_muon_bf16_torch_dp2"), {
        "mp_rank_00/model_optim_rng.pt": Part.DATA,
        "mp_rank_00/layer_wise_optimizer_0.pt": Part.DATA,
        "mp_rank_00/layer_wise_optimizer_1.pt": Part.DATA}),
    Kind("megatron_torch_dist", golden("lw_muon_bf16_torch_dist_dp2"), {
        ".metadata": Part.KEY, "common.pt": Part.DATA, "__0_0.distcp": Part.DATA,
        "__1_0.distcp": Part.DATA}, "torch"),
)

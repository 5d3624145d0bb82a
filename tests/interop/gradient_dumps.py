"""Gradients as Megatron saves them with --save-wgrads-interval: one torch.save file of each rank
that is first of those that share its experts, {model_chunk0: {local name: main_grad}, ...}.

SHARDWISE_MEGATRON: a checkout of Megatron-LM, whose own save_grads() writes the files then.
"""

from __future__ import annotations

import ast
import json
import os
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file


def part_of(grad: torch.Tensor, param: dict, tp: int, count: int, is_gated: bool) -> torch.Tensor:
    """What a tensor-parallel rank has of a gradient: of a gated linear_fc1 a block of each half."""
    dim = param["tp_dim"]
    if dim < 0 or count == 1:
        return grad.clone()
    halves = grad.chunk(2, dim) if is_gated and "linear_fc1" in param["name"] else (grad,)
    return torch.cat([half.chunk(count, dim)[tp] for half in halves], dim).contiguous()


def state_of_rank(rank: dict, grads: dict[str, torch.Tensor], sizes: dict, is_gated: bool) -> dict:
    state = defaultdict(dict)
    for param in rank["params"]:
        is_expert = ".experts." in param["name"]
        count = (sizes["etp"] or sizes["tp"]) if is_expert else sizes["tp"]
        at = rank["etp"] if is_expert else rank["tp"]
        part = part_of(grads[param["name"]], param, at, count, is_gated)
        assert list(part.shape) == param["shape"], param
        state[f"model_chunk{param['chunk']}"][param["local"]] = part
    return state


def save_grads(save_dir: str, state: dict, iteration: int, label: str, at: SimpleNamespace) -> None:
    """What the function of this name in megatron/training/checkpointing.py leaves on the disk."""
    if at.edp != 0:
        return
    folder = Path(save_dir) / label / f"iter_{iteration:07d}"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"mp_rank_{at.tp:02d}"
    name += f"_{at.pp:03d}" if at.pp_size > 1 else ""
    name += f"_{at.ep:03d}" if at.ep_size > 1 else ""
    torch.save(dict(state), folder / f"{name}.pth")


def megatrons_save_grads(save_dir: str, state: dict, iteration: int, label: str,
                         at: SimpleNamespace) -> None:
    """Its own function, out of the checkout, between ranks of our choice."""
    source = Path(os.environ["SHARDWISE_MEGATRON"]) / "megatron/training/checkpointing.py"
    functions = [node for node in ast.parse(source.read_text()).body
                 if isinstance(node, ast.FunctionDef) and node.name == "save_grads"]
    mpu = SimpleNamespace(
        get_expert_data_parallel_rank=lambda: at.edp,
        get_expert_model_parallel_rank=lambda: at.ep,
        get_pipeline_model_parallel_rank=lambda: at.pp,
        get_tensor_model_parallel_rank=lambda: at.tp,
        get_pipeline_model_parallel_world_size=lambda: at.pp_size,
        get_expert_model_parallel_world_size=lambda: at.ep_size,
    )
    names = {"mpu": mpu, "os": os, "torch": torch, "datetime": datetime,
             "print_rank_0": lambda text: None}
    exec(compile(ast.Module(functions, []), str(source), "exec"), names)  # noqa: S102
    names["save_grads"](save_dir, state, iteration, label)


def dump(root: Path, grads: dict[str, torch.Tensor], out: Path, iteration: int) -> Path:
    """The gradients of a set's ranks; the folder of the iteration."""
    ranks = json.loads((root / "expected/ranks.json").read_text())
    run = json.loads((root / "expected/run.json").read_text())
    sizes, is_gated = run["parallel"], "--swiglu" in run["argv"]
    write = megatrons_save_grads if "SHARDWISE_MEGATRON" in os.environ else save_grads
    for rank in ranks:
        at = SimpleNamespace(tp=rank["tp"], pp=rank["pp"], ep=rank["ep"], edp=rank["edp"],
                             pp_size=sizes["pp"], ep_size=sizes["ep"])
        write(str(out), state_of_rank(rank, grads, sizes, is_gated), iteration, "wgrads", at)
    return out / "wgrads" / f"iter_{iteration:07d}"


def step_of(recording: Path, step: int) -> dict[str, torch.Tensor]:
    prefix = f"grad{step}."
    return {name[len(prefix):]: tensor for name, tensor in load_file(recording).items()
            if name.startswith(prefix)}

"""Records steps of torch.optim's fused Adam and AdamW on this machine's CPU, as traces that
`step-replay check` replays. Sizes are chosen so that most tensors end in the middle of a vector.

usage: fused_adam.py FOLDER      writes adamw_fused_b2_0.999 and adam_fused_coupled_b2_0.95
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPES = {"w9x7": (9, 7), "w16x8": (16, 8), "w24x5": (24, 5), "b13": (13,), "b1": (1,)}


@dataclass(frozen=True)
class Problem:
    name: str
    decoupled: bool = True
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.1
    steps: int = 3
    seed: int = 24
    grad_scale: float = 0.1


def record(problem: Problem, shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """What goes into the steps and comes out of them, by the names that traces have."""
    generator = torch.Generator().manual_seed(problem.seed)
    params = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }
    recorded = {f"init.{name}": param.detach().clone() for name, param in params.items()}
    kind = torch.optim.AdamW if problem.decoupled else torch.optim.Adam
    optimizer = kind(
        params.values(),
        lr=problem.lr,
        betas=problem.betas,
        eps=problem.eps,
        weight_decay=problem.weight_decay,
        fused=True,
    )
    for k in range(problem.steps):
        for name, param in params.items():
            param.grad = torch.randn(param.shape, generator=generator) * problem.grad_scale
            recorded[f"grad{k}.{name}"] = param.grad.clone()
        optimizer.step()
        for name, param in params.items():
            recorded[f"step{k}.param.{name}"] = param.detach().clone()
            for state, tensor in optimizer.state[param].items():
                recorded[f"step{k}.{state}.{name}"] = tensor.clone()
    return recorded


def write_trace(folder: Path, problem: Problem, shapes: dict[str, tuple[int, ...]]) -> Path:
    config = {
        "class": "torch.optim.AdamW" if problem.decoupled else "torch.optim.Adam",
        "arithmetic": "fused",
        "lr": problem.lr,
        "betas": list(problem.betas),
        "eps": problem.eps,
        "weight_decay": problem.weight_decay,
    }
    description = {
        "name": problem.name,
        "config": config,
        "scalars": {},
        "params": {name: list(shape) for name, shape in shapes.items()},
        "qkv_params": [],
    }
    save_file(record(problem, shapes), folder / f"{problem.name}.safetensors")
    file = folder / f"{problem.name}.json"
    file.write_text(json.dumps(description, indent=1))
    return file


def main() -> None:
    folder = Path(sys.argv[1])
    write_trace(folder, Problem("adamw_fused_b2_0.999"), SHAPES)
    write_trace(
        folder,
        Problem("adam_fused_coupled_b2_0.95", decoupled=False, betas=(0.9, 0.95), seed=25),
        SHAPES,
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()

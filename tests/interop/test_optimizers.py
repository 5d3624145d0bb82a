"""torch.optim and liboptim agree on random problems: PyTorch takes the steps and records them,
step-replay takes them again within the bounds of docs/optimizer.md."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from programs import succeed

SHAPES = ((1,), (7,), (33, 5), (5, 33), (64, 64), (3, 4, 5), (1, 129), (300, 70))
MATRICES = ((8, 8), (33, 5), (5, 33), (64, 48), (300, 70), (70, 300))
SEEDS = range(6)


def random_adam(rng: random.Random) -> dict:
    return {
        "lr": 10 ** rng.uniform(-4, -1), "betas": [rng.uniform(0.5, 0.95), rng.uniform(0.8, 0.999)],
        "eps": 10 ** rng.uniform(-10, -6), "weight_decay": rng.choice([0.0, 0.01, 0.1]),
    }


def random_sgd(rng: random.Random) -> dict:
    return {
        "lr": 10 ** rng.uniform(-4, -1), "momentum": rng.choice([0.0, 0.5, 0.9]),
        "weight_decay": rng.choice([0.0, 0.01, 0.1]),
    }


def random_muon(rng: random.Random) -> dict:
    return {
        "lr": 10 ** rng.uniform(-3, -1.5), "momentum": rng.uniform(0.5, 0.97),
        "nesterov": rng.choice([True, False]), "weight_decay": rng.choice([0.0, 0.1]),
        "ns_coefficients": [3.4445, -4.775, 2.0315], "ns_steps": rng.choice([3, 5]),
        "adjust_lr_fn": rng.choice(["original", "match_rms_adamw"]),
    }


ALGORITHMS = {
    "Adam": (torch.optim.Adam, random_adam, SHAPES, ("exp_avg", "exp_avg_sq")),
    "AdamW": (torch.optim.AdamW, random_adam, SHAPES, ("exp_avg", "exp_avg_sq")),
    "SGD": (torch.optim.SGD, random_sgd, SHAPES, ("momentum_buffer",)),
    "Muon": (torch.optim.Muon, random_muon, MATRICES, ("momentum_buffer",)),
}


def record(folder: Path, name: str, seed: int) -> Path:
    """Three steps of PyTorch's optimizer as a trace; gradients may have had fewer bits."""
    make, settings_of, shapes, states = ALGORITHMS[name]
    rng = random.Random(f"{name} {seed}")
    generator = torch.Generator().manual_seed(seed)
    settings = settings_of(rng)
    params = {f"p{i}": torch.nn.Parameter(torch.randn(shape, generator=generator))
              for i, shape in enumerate(shapes)}
    tensors = {f"init.{key}": param.detach().clone() for key, param in params.items()}
    optimizer = make(params.values(), **settings)
    grad_dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    for step in range(3):
        for key, param in params.items():
            grad = torch.randn(param.shape, generator=generator) * 0.1
            param.grad = grad.to(grad_dtype).float()
            tensors[f"grad{step}.{key}"] = param.grad.clone()
        optimizer.step()
        for key, param in params.items():
            tensors[f"step{step}.param.{key}"] = param.detach().clone()
            for state in states:
                value = optimizer.state[param].get(state)
                if value is not None:
                    tensors[f"step{step}.{state}.{key}"] = value.clone()
    save_file(tensors, folder / f"{name}_{seed}.safetensors")
    trace = {
        "name": f"{name}_{seed}", "config": {"class": f"torch.optim.{name}", **settings},
        "params": {key: list(param.shape) for key, param in params.items()}, "qkv_params": [],
    }
    path = folder / f"{name}_{seed}.json"
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("name", ALGORITHMS)
def test_random_steps_of_pytorch_are_taken_again(tmp_path: Path, name: str) -> None:
    traces = [record(tmp_path, name, seed) for seed in SEEDS]
    outcome = succeed("step-replay", "check", *traces)
    assert outcome.stdout.count("passed") == len(traces)

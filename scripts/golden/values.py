"""Deterministic values: a tensor depends on the case, its name and its role, on nothing else."""

from __future__ import annotations

import hashlib
import random

import numpy
import torch


def seed_of(*words: object) -> int:
    text = "\0".join(str(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def normal(shape: tuple[int, ...], *words: object) -> torch.Tensor:
    """fp32 standard normal values of `shape`."""
    generator = torch.Generator().manual_seed(seed_of(*words))
    return torch.randn(shape, generator=generator)


def master_of(case: str, name: str, shape: tuple[int, ...], fresh: bool) -> torch.Tensor:
    """The fp32 master of a parameter; its bf16 weight is this tensor rounded.

    `fresh` is the state right after initialization, where biases are zero and norm weights one, so
    that the content alone does not say which parameter a master belongs to.
    """
    is_norm = "norm" in name
    if fresh and len(shape) == 1:
        return torch.ones(shape) if is_norm and name.endswith("weight") else torch.zeros(shape)
    values = 0.2 * normal(shape, case, name, "master")
    return values + 1.0 if is_norm and name.endswith("weight") else values


def state_of(case: str, name: str, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """A momentum or moment, with a negative zero, a subnormal and a large value at its end."""
    values = 1e-3 * normal(shape, case, name, kind)
    if kind == "exp_avg_sq":
        return values.square()
    flat = values.view(-1)
    flat[-3:] = torch.tensor([-0.0, 1e-40, -3e38])
    return values


def rng_state(case: str, rank: int) -> dict:
    """What Megatron's get_rng_state returns; the CUDA states are 16 bytes, as there is no GPU."""
    seed = seed_of(case, "rng", rank) % 2**31
    python_rng = random.Random(seed)
    numpy_rng = numpy.random.RandomState(seed)
    torch_rng = torch.Generator().manual_seed(seed)

    def cuda_like(word: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed_of(case, word, rank))
        return torch.randint(0, 256, (16,), generator=generator, dtype=torch.uint8)

    trackers = ("model-parallel-rng", "data-parallel-rng", "expert-parallel-rng")
    return {
        "random_rng_state": python_rng.getstate(),
        "np_rng_state": numpy_rng.get_state(),
        "torch_rng_state": torch_rng.get_state(),
        "cuda_rng_state": cuda_like("cuda"),
        "rng_tracker_states": {name: cuda_like(name) for name in trackers},
    }

"""AdamArithmetic::Fused against torch.optim.AdamW(fused=True) and Adam(fused=True) on random
problems, bit for bit: `step-replay check --atol 0` of what PyTorch does on this machine."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch

from programs import BIN, REPOSITORY, run, succeed

sys.path.insert(0, str(REPOSITORY / "scripts"))
from golden.fused_adam import SHAPES, Problem, write_trace  # noqa: E402

GOLDEN_TRACES = ("adamw_fused_b2_0.999", "adam_fused_coupled_b2_0.95")

pytestmark = [
    pytest.mark.skipif(not (BIN / "step-replay").exists(), reason="step-replay was not built"),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
        reason="torch's fused kernel rounds otherwise without AVX2",
    ),
]


def random_problem(seed: int) -> Problem:
    choose = random.Random(seed)
    return Problem(
        f"problem{seed}",
        decoupled=choose.random() < 0.6,
        lr=choose.choice([1e-3, 0.01, 6e-4]),
        betas=(choose.choice([0.9, 0.95, 0.5, 0.25]), choose.choice([0.999, 0.95, 0.3])),
        eps=choose.choice([1e-8, 1e-15, 1e-5]),
        weight_decay=choose.choice([0.0, 0.1, 0.01]),
        steps=5,
        seed=seed,
        grad_scale=10 ** choose.uniform(-6, 1),
    )


def random_shapes(seed: int) -> dict[str, tuple[int, ...]]:
    """Every tail of a vector of eight, and sizes around those that are updated at a time."""
    choose = random.Random(seed)
    sizes = [*range(1, 17), 31, 32, 33, 63, 65, 16383, 16384, 16391, choose.randrange(1, 70_000)]
    return {f"p{size}": (size,) for size in sizes}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("threads", [1, 3])
def test_replays_have_the_bits_of_torchs_fused_adam(tmp_path: Path, seed: int, threads: int):
    torch.set_num_threads(threads)
    trace = write_trace(tmp_path, random_problem(seed), random_shapes(seed))
    succeed("step-replay", "check", trace, "--atol", 0, "--rtol", 0, "-j", 4 - threads)


def test_the_other_arithmetic_is_noticed(tmp_path: Path):
    trace = write_trace(tmp_path, Problem("p"), {"p1000": (1000,)})
    as_torch = json.loads(trace.read_text())
    del as_torch["config"]["arithmetic"]
    trace.write_text(json.dumps(as_torch))
    assert run("step-replay", "check", trace, "--atol", 0, "--rtol", 0).code == 1


@pytest.mark.parametrize("name", GOLDEN_TRACES)
def test_this_machines_torch_makes_the_recorded_traces_again(tmp_path: Path, name: str):
    decoupled = name.startswith("adamw")
    problem = Problem(name) if decoupled else Problem(
        name, decoupled=False, betas=(0.9, 0.95), seed=25
    )
    write_trace(tmp_path, problem, SHAPES)
    for suffix in (".json", ".safetensors"):
        recorded = REPOSITORY / "tests/golden/steps" / f"{name}{suffix}"
        assert (tmp_path / recorded.name).read_bytes() == (
            recorded.read_bytes()
        )

"""Which parameters Megatron-Core's HybridDeviceOptimizer offloads: its own code, asked about
parameters that say that they lie on a GPU. Run as a program, it writes the table that the C++ tests
read: one case per line, `fraction | elements of the parameters of each group | 1 where offloaded`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

TABLE = Path(__file__).resolve().parents[1] / "golden/offload/choices.txt"
FRACTIONS = (0.0, 0.1, 0.3, 0.5, 0.75, 0.999, 1.0)
GROUPS = ([[10]], [[10, 10]], [[1, 100], [100, 1]], [[100, 1, 1], [1]], [[7, 0, 3], [0, 5]],
          [[1], [1], [1], [1]], [[192, 128, 8, 64], [192, 24, 256, 256, 8, 192]])


@dataclass(eq=False)
class FakeParam:
    """As much of a parameter as the choice asks for."""

    elements: int
    is_cuda: bool = True
    dtype: torch.dtype = torch.bfloat16

    def numel(self) -> int:
        return self.elements

    def cpu(self) -> FakeParam:
        return FakeParam(self.elements, False, self.dtype)

    def float(self) -> FakeParam:
        return FakeParam(self.elements, self.is_cuda, torch.float32)

    def detach(self) -> FakeParam:
        return self

    clone = pin_memory = detach


def chosen(fraction: float, groups: list[list[int]], dtype: torch.dtype) -> list[list[bool]]:
    """By group, whether the real code gives the parameter a copy on the CPU."""
    params: list[dict[str, Any]] = [
        {"params": [FakeParam(elements, dtype=dtype) for elements in group]} for group in groups]
    optimizer = SimpleNamespace(param_groups=params, param_update_in_fp32=True,
                                pin_cpu_params=True)
    split = HybridDeviceOptimizer._get_sub_optimizer_param_groups  # noqa: SLF001: the choice itself
    copies = split(optimizer, fraction)[2]
    return [[param in copies for param in group["params"]] for group in params]


def cases() -> list[tuple[float, list[list[int]]]]:
    """Made by hand and at random; sizes that a fraction divides evenly are among them."""
    numbers = random.Random(5)
    drawn = [[[numbers.randrange(1, 300) for _ in range(numbers.randrange(1, 6))]
              for _ in range(numbers.randrange(1, 4))] for _ in range(12)]
    return [(fraction, groups) for groups in [*GROUPS, *drawn] for fraction in FRACTIONS]


def line_of(fraction: float, groups: list[list[int]], dtype: torch.dtype) -> str:
    sizes = "; ".join(" ".join(map(str, group)) for group in groups)
    marks = "; ".join(" ".join(str(int(mark)) for mark in group)
                      for group in chosen(fraction, groups, dtype))
    return f"{fraction} | {sizes} | {marks}"


def table(dtype: torch.dtype = torch.bfloat16) -> str:
    return "".join(f"{line_of(*case, dtype)}\n" for case in cases())


if __name__ == "__main__":
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(table())

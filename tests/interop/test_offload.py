"""CPU offload: what Megatron-Core does is what the C++ tests and the documents say of it."""

from __future__ import annotations

import inspect

import pytest
import torch
from megatron.core import optimizer as core_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

from offload_choices import TABLE, chosen, table


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_table_of_choices_is_the_real_one(dtype: torch.dtype) -> None:
    assert table(dtype) == TABLE.read_text()


def test_the_parameter_that_crosses_the_fraction_is_offloaded_whole() -> None:
    assert chosen(0.1, [[100, 1]], torch.bfloat16) == [[True, False]]
    assert chosen(0.5, [[1, 100], [100, 1]], torch.bfloat16) == [[True, True], [False, False]]


def test_nothing_is_offloaded_without_a_gpu() -> None:
    """Parameters on the CPU stay there and are stepped there, at any fraction."""
    param = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = object.__new__(HybridDeviceOptimizer)
    optimizer.param_groups = [{"params": [param]}]
    optimizer.param_update_in_fp32 = True
    split = HybridDeviceOptimizer._get_sub_optimizer_param_groups  # noqa: SLF001
    cpu_groups, gpu_groups, copies, _, masters = split(optimizer, 1.0)
    assert not gpu_groups and not copies
    assert cpu_groups[0]["params"] == [masters[param]]


def test_use_torch_optimizer_for_cpu_offload_changes_nothing() -> None:
    """docs/errata.md: the factory overwrites in the next lines what the field has chosen."""
    factory = core_optimizer._get_megatron_optimizer_based_on_param_groups  # noqa: SLF001
    source = inspect.getsource(factory)
    branch = source[source.index("if config.use_torch_optimizer_for_cpu_offload:"):]
    branch = branch[:branch.index("HybridDeviceOptimizer(")]
    assert branch.count("gpu_optimizer_cls = ") == 3
    assert branch.count("gpu_optimizer_cls = Adam") == 1
    assert branch.count("gpu_optimizer_cls = SGD") == 1

"""Megatron-Core's own LayerWiseDistributedOptimizer around two optimizers whose state is given.

Megatron's wrappers deal the parameters, make the masters and name the state; the two optimizers
inside only have to hold groups and state as Muon and Adam do, so nothing here takes a step.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import torch
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.process_groups_config import ProcessGroupCollection

from golden.cases import Case
from golden.values import master_of, state_of

MAX_LR, MIN_LR, WEIGHT_DECAY = 0.01, 0.001, 0.1
GLOBAL_BATCH_SIZE = 12


class Muon(torch.optim.Optimizer):
    """Holds the groups and the state of emerging_optimizers' Muon."""

    def __init__(self, groups: list[dict]):
        super().__init__(groups, dict(lr=MAX_LR, momentum=0.9, weight_decay=WEIGHT_DECAY))


class FusedAdam(torch.optim.Optimizer):
    """Holds the groups and the state of TransformerEngine's FusedAdam: `step` is in the group."""

    def __init__(self, groups: list[dict]):
        super().__init__(
            groups,
            dict(
                lr=MAX_LR,
                bias_correction=True,
                betas=(0.9, 0.999),
                eps=1e-8,
                weight_decay=WEIGHT_DECAY,
            ),
        )


@contextlib.contextmanager
def cpu_called_cuda():
    """Lets Megatron's mixed-precision wrapper, which insists on CUDA tensors, take a CPU's."""
    make_tensor, type_name = torch.tensor, torch.Tensor.type

    def tensor(*values, **options):
        options.pop("device", None)
        return make_tensor(*values, **options)

    def cuda_type(self, *arguments, **options):
        if arguments or options:
            return type_name(self, *arguments, **options)
        return type_name(self).replace("torch.", "torch.cuda.")

    with mock.patch.object(torch, "tensor", tensor), mock.patch.object(
        torch.Tensor, "type", cuda_type
    ):
        yield


def param_group(parameters: list, weight_decay_factor: float = 1.0, **overrides) -> dict:
    """A group as Megatron's _get_param_groups makes it."""
    return {
        "params": parameters,
        "is_expert_parallel": False,
        "default_config": True,
        "wd_mult": weight_decay_factor,
        "lr_mult": 1.0,
        "is_decoupled_lr": False,
        "max_lr": MAX_LR,
        "min_lr": MIN_LR,
        **overrides,
    }


def inner_optimizers(model: torch.nn.Module, adam_layout: str) -> list[torch.optim.Optimizer]:
    """Muon for matrices, Adam for the rest; no weight decay on biases and one-dimensional weights.

    A group without parameters is not made: Megatron makes groups of what the model has.
    """
    matrices, with_decay, without_decay = [], [], []
    for name, parameter in model.named_parameters():
        embedding = getattr(parameter, "is_embedding_or_output_parameter", False)
        if parameter.dim() == 2 and not embedding:
            matrices.append(parameter)
        elif parameter.dim() == 1 or name.endswith(".bias"):
            without_decay.append(parameter)
        else:
            with_decay.append(parameter)
    adam_groups = [
        param_group(parameters, factor, optimizer="adam")
        for parameters, factor in ((with_decay, 1.0), (without_decay, 0.0))
        if parameters
    ]
    if adam_layout == "fused":
        adam = FusedAdam(adam_groups)
    else:
        adam = torch.optim.AdamW(adam_groups, lr=MAX_LR, weight_decay=WEIGHT_DECAY)
    return [Muon([param_group(matrices)]), adam]


def make_state(optimizer: torch.optim.Optimizer, config: object = None) -> None:
    """Gives every parameter zero state: what Megatron calls before it loads."""
    kinds = ("momentum_buffer",) if isinstance(optimizer, Muon) else ("exp_avg", "exp_avg_sq")
    for group in optimizer.param_groups:
        if isinstance(optimizer, FusedAdam) and group["params"]:
            group["step"] = 0
        for parameter in group["params"]:
            if optimizer.state[parameter]:
                continue
            if isinstance(optimizer, torch.optim.AdamW):
                optimizer.state[parameter]["step"] = torch.tensor(0.0)
            for kind in kinds:
                optimizer.state[parameter][kind] = torch.zeros_like(parameter)


def build_optimizer(model: torch.nn.Module, case: Case) -> LayerWiseDistributedOptimizer:
    """This rank's part of the layer-wise optimizer, dealt by Megatron itself, with zero state."""
    inner = inner_optimizers(model, case.adam_layout)
    config = OptimizerConfig(
        optimizer="adam", lr=MAX_LR, min_lr=MIN_LR, weight_decay=WEIGHT_DECAY, bf16=True
    )
    groups = ProcessGroupCollection.use_mpu_process_groups(["dp_cp", "expt_dp"])
    with cpu_called_cuda():
        return LayerWiseDistributedOptimizer(
            inner, config, groups, init_state_fn_list=[make_state] * len(inner)
        )


def fill_optimizer(optimizer: LayerWiseDistributedOptimizer, model, case: Case) -> None:
    """Masters, moments and steps of the case, for the parameters that this rank owns."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for wrapped in optimizer.chained_optimizers:
        inner = wrapped.optimizer
        make_state(inner)
        for group, weights in zip(inner.param_groups, wrapped.float16_groups, strict=True):
            if "step" in group:
                group["step"] = case.iteration
            for master, weight in zip(group["params"], weights, strict=True):
                name, shape = names[id(weight)], tuple(weight.shape)
                master.data.copy_(master_of(case.name, name, shape, case.fresh))
                for kind, values in inner.state[master].items():
                    fill_state(values, kind, name, case)


def fill_state(values: torch.Tensor, kind: str, name: str, case: Case) -> None:
    if kind == "step":
        values.fill_(float(case.iteration))
    else:
        values.copy_(state_of(case.name, name, tuple(values.shape), kind))


def build_scheduler(optimizer: LayerWiseDistributedOptimizer, case: Case):
    """Megatron's scheduler after `case.iteration` steps; it sets each group's lr and decay."""
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=MAX_LR,
        min_lr=MIN_LR,
        lr_warmup_steps=0,
        lr_decay_steps=10 * GLOBAL_BATCH_SIZE,
        lr_decay_style="cosine",
        start_wd=WEIGHT_DECAY,
        end_wd=WEIGHT_DECAY,
        wd_incr_steps=10 * GLOBAL_BATCH_SIZE,
        wd_incr_style="constant",
    )
    scheduler.step(case.iteration * GLOBAL_BATCH_SIZE)
    return scheduler

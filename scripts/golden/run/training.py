"""Start-up, given values, steps and saving, by the functions that a real run calls."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from functools import partial

import numpy as np
import torch

from golden.run.live_state import LiveState, gathered, leaf_optimizers
from golden.run.splits import bare, buffers_of, parameters_of


def _random(*key) -> np.random.Generator:
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class MadeUpValues:
    """Weights and gradients of a family: a function of seed and name."""

    def __init__(self, family):
        self.family = family

    def weight(self, name, shape) -> torch.Tensor:
        values = _random("weight", self.family.seed, name).standard_normal(shape, np.float32)
        scale, offset = (0.05, 1) if "norm" in name and name.endswith("weight") else (0.05, 0)
        return torch.from_numpy(values * np.float32(scale) + np.float32(offset))

    def gradient(self, step, name, shape) -> torch.Tensor:
        """Few bits of mantissa, so that the mean over equal replicas is exact. The step after the
        checkpoint has large ones, which are clipped."""
        values = _random("gradient", self.family.seed, step, name)
        scale = np.float32(0.02 if step >= self.family.steps else 0.001)
        gradient = torch.from_numpy(values.standard_normal(shape, np.float32) * scale)
        return gradient.to(torch.bfloat16).float()


class StoredValues:
    """The same from a safetensors file of `init.NAME` and `grad{K}.NAME`."""

    def __init__(self, path):
        from safetensors.torch import load_file

        self.tensors = load_file(path)

    def gradient(self, step, name, shape) -> torch.Tensor:
        """Rows of padding come and go with the sizes; they are none of the vocabulary."""
        stored = self.tensors[f"grad{step}.{name}"].float()
        if stored.shape == torch.Size(shape):
            return stored
        gradient = torch.zeros(shape)
        rows = min(len(stored), len(gradient))
        gradient[:rows] = stored[:rows]
        return gradient


@contextlib.contextmanager
def clipped_by(recorded_norm: float | None):
    """Clips gradients by this norm instead of that of the optimizers."""
    from megatron.core.optimizer import optimizer

    if recorded_norm is None:
        yield
        return
    clip = optimizer.clip_grad_by_total_norm_fp32

    def by_recorded(parameters, max_norm, total_norm, *values, **options):
        return clip(parameters, max_norm, recorded_norm, *values, **options)

    optimizer.clip_grad_by_total_norm_fp32 = by_recorded
    try:
        yield
    finally:
        optimizer.clip_grad_by_total_norm_fp32 = clip


def _start() -> None:
    """Megatron's own start-up; trees after April 2026 parse the command line before it."""
    from megatron.training import arguments, initialize

    if hasattr(arguments, "parse_and_validate_args"):
        arguments.parse_and_validate_args()
    initialize.initialize_megatron(allow_no_cuda=True)


class Run:
    """One rank of a run: started, with its model and optimizer."""

    def __init__(self, command_line: list[str]):
        from megatron.core import parallel_state
        from megatron.training import get_args

        torch.set_num_threads(1)
        sys.argv = ["pretrain_gpt.py", *command_line]
        _start()
        self.args, self.parallel_state = get_args(), parallel_state
        self.build()

    def build(self) -> None:
        """Megatron's own set-up; it loads the checkpoint where --load names one."""
        from gpt_builders import gpt_builder
        from megatron.core.enums import ModelType
        from megatron.training.training import setup_model_and_optimizer
        from model_provider import model_provider

        built = setup_model_and_optimizer(
            model_provider_func=partial(model_provider, gpt_builder),
            model_type=ModelType.encoder_or_decoder)
        self.model, self.optimizer, self.scheduler = built[:3]

    def places(self):
        return parameters_of(self.model, self.args, self.parallel_state)

    def buffers(self):
        return buffers_of(self.model, self.args, self.parallel_state)

    def fill(self, values: MadeUpValues) -> None:
        with torch.no_grad():
            for place, tensor in self.places() + self.buffers():
                whole = values.weight(place.name, place.whole_shape)
                tensor.copy_(place.cut(whole.to(torch.bfloat16)))
        for leaf in leaf_optimizers(self.optimizer):
            if hasattr(leaf, "reload_model_params"):
                leaf.reload_model_params()

    def step(self, values, number: int, recorded_norm: float | None = None) -> dict:
        """One optimizer step with given whole gradients, reduced as the run reduces its own.

        With a recorded norm the gradients are clipped by it: what ranks sum in another order does
        not reach the update then.
        """
        sizes = self.parallel_state
        replicas = sizes.get_data_parallel_world_size(with_context_parallel=True)
        scale = float(self.optimizer.get_loss_scale()) if self.args.fp16 else 1.0
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        for place, parameter in self.places():
            gradient = place.cut(values.gradient(number, place.name, place.whole_shape))
            if not getattr(parameter, "allreduce", True):
                # the mean is over all replicas, the sum over those of the experts alone
                gradient = gradient * (replicas // sizes.get_expert_data_parallel_world_size())
            parameter.main_grad.copy_(gradient * scale)
        for chunk in self.model:
            chunk.finish_grad_sync()
        groups = self.optimizer.param_groups
        told = {"lr_per_group": [group["lr"] for group in groups],
                "weight_decay_per_group": [group["weight_decay"] for group in groups]}
        with clipped_by(recorded_norm):
            succeeded, norm, zeros = self.optimizer.step()
        if succeeded:
            self.scheduler.step(increment=self.args.global_batch_size)
        return told | {"ok": bool(succeeded), "grad_norm": None if norm is None else float(norm),
                       "num_zeros": None if zeros is None else int(zeros)}

    def state(self):
        live = LiveState(self.model, self.optimizer, self.args, self.parallel_state)
        whole, problems = gathered(live.pieces)
        if problems:
            raise RuntimeError("the ranks disagree: " + "; ".join(problems[:10]))
        return whole, live.owned

    def save(self, iteration: int) -> None:
        from megatron.training.checkpointing import save_checkpoint
        from megatron.training.training import preprocess_common_state_dict

        self.args.iteration = iteration
        self.args.consumed_train_samples = iteration * self.args.global_batch_size
        save_checkpoint(iteration, self.model, self.optimizer, self.scheduler, 0.0,
                        preprocess_common_state_dict_fn=preprocess_common_state_dict)

    def label_modules(self) -> None:
        """Tells each module its name in the whole model: what its extra state depends on."""
        from golden.run.splits import Names

        for wrapped in self.model:
            names = Names(bare(wrapped), self.args, self.parallel_state)
            for local, module in bare(wrapped).named_modules():
                module.sample_name = names.whole(local + ".")[:-1]

"""Fits an imported Megatron-LM tree to CPUs and Gloo; nothing of its optimizers, buffers or
checkpoints is replaced, save for the fused Adam, which needs CUDA, and the mark of a copied
embedding, which is that of August 2026.

Call `fit` once, after the tree is imported and before a process forks.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import typing

import numpy
import torch
import torch.distributed as dist
import typing_extensions

if not hasattr(numpy, "product"):  # NumPy 2; Megatron-Core 0.15 asks for 1
    numpy.product = numpy.prod
if not hasattr(typing, "override"):  # Python 3.11; emerging_optimizers asks for 3.12
    typing.override = typing_extensions.override


class FusedAdam(torch.optim.AdamW):
    """AdamW with the state of TransformerEngine's FusedAdam: `step` is an int in the group."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8,
                 adam_w_mode=True, weight_decay=0.0, **_):
        self.adam_w_mode = adam_w_mode
        torch.optim.Optimizer.__init__(self, params, {
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
            "weight_decay": weight_decay})

    def __setstate__(self, state):
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure=None, grad_scaler=None):
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group)

    def _update(self, parameter, group):
        (beta1, beta2), step = group["betas"], group["step"]
        gradient, state = parameter.grad.float(), self.state[parameter]
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = (square / (1 - beta2**step)).sqrt() + group["eps"]
        update = (average / (1 - beta1**step)) / corrected
        update.add_(parameter, alpha=group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"])


class _Done:
    """The handle of an operation that was waited for when it was called."""

    def wait(self, *_, **__):
        return True


def _waited_for(collective):
    @functools.wraps(collective)
    def call(*values, **options):
        handle = collective(*values, **options)
        if not options.get("async_op"):
            return handle
        if handle is not None:
            handle.wait()
        return _Done()

    return call


def _uneven_all_gather(even):
    """Gloo gathers tensors of one size alone: others are broadcast, one after the other."""

    def all_gather(tensor_list, tensor, group=None, async_op=False):
        sizes = {t.numel() for t in tensor_list} | {tensor.numel()}
        if len(sizes) == 1:
            return even(tensor_list, tensor, group=group, async_op=async_op)
        for rank, target in enumerate(tensor_list):
            if target.numel() == 0:
                continue
            if rank == dist.get_rank(group) and target.data_ptr() != tensor.data_ptr():
                target.copy_(tensor)
            root = rank if group is None else dist.get_global_rank(group, rank)
            dist.broadcast(target, root, group=group)
        return _Done() if async_op else None

    return all_gather


@contextlib.contextmanager
def _one_by_one(*_, **__):
    yield _Done()


def _fit_communication():
    import megatron.core.distributed.param_and_grad_buffer as buffers

    buffers._coalescing_manager = _one_by_one
    for name in ("dist_reduce_scatter_func", "dist_all_gather_func"):
        setattr(buffers, name, _waited_for(getattr(buffers, name)))
    for name in ("all_reduce", "_reduce_scatter_base", "_all_gather_base"):
        setattr(dist, name, _waited_for(getattr(dist, name)))
    dist.all_gather = _uneven_all_gather(dist.all_gather)


def _with_config(function, field, value):
    """`function` sees config.field = value: a check that only a forward pass needs is passed."""

    @functools.wraps(function)
    def call(owner, config, *values, **options):
        before = getattr(config, field)
        setattr(config, field, value)
        try:
            return function(owner, config, *values, **options)
        finally:
            setattr(config, field, before)

    return call


def _fit_modules():
    import megatron.core.transformer.dot_product_attention as attention
    import megatron.core.transformer.torch_norm as norms

    attention.DotProductAttention.__init__ = _with_config(
        attention.DotProductAttention.__init__, "context_parallel_size", 1)
    norms.WrappedTorchNorm.__new__ = _with_config(
        norms.WrappedTorchNorm.__new__, "sequence_parallel", False)


def _mark_embedding_copies():
    """The stage of multi-token prediction has a copy of the embedding. Trees before August 2026 do
    not mark it as one, so Muon steps the copy and Adam the embedding, and they drift apart."""
    from megatron.core.models.common.language_module.language_module import LanguageModule

    real = LanguageModule.setup_embeddings_and_output_layer

    @functools.wraps(real)
    def set_up(self):
        if getattr(self, "mtp_process", False) and hasattr(self, "embedding"):
            self.embedding.word_embeddings.weight.is_embedding_or_output_parameter = True
        return real(self)

    LanguageModule.setup_embeddings_and_output_layer = set_up


def _fit_optimizers():
    import megatron.core.optimizer as optimizers
    import megatron.core.optimizer.distrib_optimizer as zero1

    optimizers.Adam = zero1.Adam = FusedAdam
    optimizers.USING_PYTORCH_OPTIMIZER = False
    zero1.HAVE_APEX_OR_TE = zero1.USING_TE_OPTIMIZER = True


def _fit_random_numbers():
    """The tracker sets a state by a call that CUDA makes when it starts, which is never here."""
    import megatron.core.tensor_parallel.random as random_states

    random_states._set_cuda_rng_state = lambda state, *_, **__: torch.cuda.set_rng_state(state)


def _fit_checkpointing():
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writer
    import megatron.core.dist_checkpointing.strategies.torch as strategy
    import megatron.training.checkpointing as checkpointing

    if hasattr(strategy, "get_async_strategy"):  # Megatron-Core 0.17 and later
        in_tree, results = strategy.get_async_strategy, queue.Queue()
        strategy.get_async_strategy = lambda _name="mcore", module=None: in_tree("mcore", module)
        writer.get_write_results_queue = lambda mp_mode="spawn": results
    checkpointing.fix_fp8_params_lose_precision_when_loading_dist_ckpt = lambda *_, **__: None


def fit(mark_embedding_copies: bool = True) -> None:
    import megatron.training.initialize as initialize

    torch.cuda.device_count = lambda: 8
    initialize._compile_dependencies = lambda: None  # of data sets
    _fit_communication()
    _fit_modules()
    _fit_optimizers()
    _fit_random_numbers()
    _fit_checkpointing()
    if mark_embedding_copies:
        _mark_embedding_copies()

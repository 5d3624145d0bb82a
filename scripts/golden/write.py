"""Writes one case in one format from inside a Gloo process, as Megatron's save_checkpoint does."""

from __future__ import annotations

import argparse
import copy
import contextlib
import functools
import queue
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import torch
import torch.distributed
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.rerun_state_machine import RerunStateMachine

from golden.cases import Case
from golden.model import build_model
from golden.optimizer import GLOBAL_BATCH_SIZE, build_optimizer, build_scheduler, fill_optimizer
from golden.values import rng_state

SAMPLE = (
    Path(__file__).resolve().parents[2]
    / "tests/golden/lw_muon_bf16_torch_dp2/ckpt/iter_0000003/mp_rank_00/model_optim_rng.pt"
)


def content_metadata(case: Case) -> dict:
    return {
        "singleton_local_shards": case.singleton_local_shards,
        "chained_optim_avoid_prefix": case.avoid_prefix,
    }


@functools.cache
def sample_args() -> argparse.Namespace:
    """The 707 arguments of a checkpoint that Megatron-LM wrote; a case changes some of them."""
    return torch.load(SAMPLE, weights_only=False)["args"]


def case_args(case: Case, checkpoint_format: str, dp_size: int) -> argparse.Namespace:
    shape = case.shape
    args = copy.deepcopy(sample_args())
    grouped = shape.num_query_groups is not None
    changes = {
        **vars(shape),
        "encoder_num_layers": shape.num_layers,
        "kv_channels": shape.hidden_size // shape.num_attention_heads,
        "num_query_groups": shape.num_query_groups if grouped else 1,
        "group_query_attention": grouped,
        "add_position_embedding": shape.position_embedding_type == "learned_absolute",
        "padded_vocab_size": shape.vocab_size,
        "data_parallel_random_init": case.rng_per_rank,
        "ckpt_fully_parallel_save": case.fully_parallel_save,
        "train_iters": max(10, case.iteration),
        "consumed_train_samples": case.iteration * GLOBAL_BATCH_SIZE,
        "data_parallel_size": dp_size,
        "world_size": dp_size,
        "inprocess_active_world_size": dp_size,
        "save": f"/mnt/checkpoints/{case.folder(checkpoint_format, dp_size)}",
        "ckpt_format": checkpoint_format,
        "use_dist_ckpt": checkpoint_format == "torch_dist",
    }
    unknown = set(changes) - set(vars(args))
    if unknown:
        raise KeyError(f"not arguments of Megatron-LM: {sorted(unknown)}")
    vars(args).update(changes)
    return args


def rng_states(case: Case, dp_size: int) -> list[dict]:
    """One state for all ranks, or one of each under --data-parallel-random-init."""
    return [rng_state(case.name, rank) for rank in range(dp_size if case.rng_per_rank else 1)]


def write_torch(case: Case, folder: Path, model, optimizer, scheduler) -> None:
    """mp_rank_00/model_optim_rng.pt by rank 0, layer_wise_optimizer_{rank}.pt by every rank."""
    rank, dp_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model_folder = folder / "mp_rank_00"
    model_folder.mkdir(parents=True, exist_ok=True)
    optimizer.save_state_dict_to_file(str(model_folder / f"layer_wise_optimizer_{rank}.pt"))
    if rank != 0:
        return
    state = {
        "args": case_args(case, "torch", dp_size),
        "checkpoint_version": 3.0,
        "iteration": case.iteration,
        "model": detached(model.state_dict_for_save_checkpoint()),
        "optimizer": optimizer.state_dict(),
        "opt_param_scheduler": scheduler.state_dict(),
        "rng_state": rng_states(case, dp_size),
        "num_floating_point_operations_so_far": 123456789,
    }
    torch.save(state, model_folder / "model_optim_rng.pt")


def detached(state: OrderedDict) -> OrderedDict:
    """Plain tensors for parameters; the entries' order and `_metadata` stay."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            state[name] = value.detach()
    return state


def write_here(transforms, use_msc, rank, buckets, results: queue.Queue) -> None:
    """write_preloaded_data_multiproc without its processes; the bytes come from the same writer."""
    written, unfinished = queue.Queue(), queue.Queue()
    for index, bucket in enumerate(buckets):
        unfinished.put(index)
        FileSystemWriterAsync.write_preloaded_data(
            transforms, index, bucket, written, unfinished, False
        )
    outcomes = dict(written.get() for _ in buckets)
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    results.put(failures[0] if failures else outcomes)


@contextlib.contextmanager
def writer_in_this_process():
    """Each rank writes its file itself: Megatron starts two processes per rank for that.

    Only the transport changes. psutil, whose numbers only reach a log, is not asked for.
    """
    with (
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")),
        mock.patch.object(filesystem_async, "_results_queue", queue.Queue()),
        mock.patch.object(filesystem_async, "_process_memory", lambda: 0),
        mock.patch.object(
            FileSystemWriterAsync, "write_preloaded_data_multiproc", staticmethod(write_here)
        ),
    ):
        yield


def write_torch_dist(case: Case, folder: Path, model, optimizer, scheduler) -> None:
    """dist_checkpointing.save of the model's and the optimizer's own sharded state."""
    rank, dp_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    content = content_metadata(case)
    model_state = model.sharded_state_dict(metadata=content)
    state = {
        "args": case_args(case, "torch_dist", dp_size),
        "checkpoint_version": 3.0,
        "iteration": case.iteration,
        "model": model_state,
        "optimizer": optimizer.sharded_state_dict(model_state, metadata=content),
        "opt_param_scheduler": scheduler.state_dict(),
        "rng_state": ShardedObject(
            "rng_state", rng_states(case, dp_size), (1, 1), (0, 0), replica_id=rank
        ),
        "num_floating_point_operations_so_far": 123456789,
    }
    if case.rerun_state:
        state["rerun_state_machine"] = RerunStateMachine().state_dict(None, "torch_dist", True)
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=case.writer_threads)
    if case.fully_parallel_save:
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        strategy = FullyParallelSaveStrategyWrapper(strategy, group)
    with writer_in_this_process():
        dist_checkpointing.save(
            state, str(folder), sharded_strategy=strategy, content_metadata=content
        )


def write_case(case: Case, checkpoint_format: str, root: Path) -> None:
    """Called by every process of a world of the wanted data-parallel size."""
    model = build_model(case)
    optimizer = build_optimizer(model, case)
    scheduler = build_scheduler(optimizer, case)
    fill_optimizer(optimizer, model, case)
    write = {"torch": write_torch, "torch_dist": write_torch_dist}[checkpoint_format]
    write(case, root / f"iter_{case.iteration:07d}", model, optimizer, scheduler)
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        (root / "latest_checkpointed_iteration.txt").write_text(str(case.iteration))

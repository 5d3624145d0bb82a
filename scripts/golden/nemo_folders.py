#!/usr/bin/env python3
"""A checkpoint of NeMo 2 as its own trainer saves it, on CPUs, and the state that the run had.

usage: PYTHONPATH=scripts torchrun --nproc_per_node RANKS scripts/golden/nemo_folders.py OUT TP PP

Writes OUT/step=2/{weights,context} after three steps, by nemo_toolkit 2.4.0 with lightning 2.4.0,
megatron-core 0.13.1, nemo_run, fiddle and torch 2.11 (pip install --no-deps nemo_toolkit), and
OUT/live.safetensors. With CKPT=FOLDER in the environment the run starts from that folder, and
OUT/started.safetensors is what it loaded. Packages that NeMo imports and this does not use are
stood in for by empty modules; devices and the fused Adam are those of golden.run.
tests/golden/nemo.tar.xz: RANKS TP PP of 2 1 1 and 4 2 2.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import multiprocessing
import os
import sys
import types
from pathlib import Path

from golden.run.devices import replace_devices

replace_devices()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

# Never asked for what they do.
UNUSED = ("modelopt", "tensorstore", "zarr", "nemo.automodel", "nemo.deploy", "nemo.export",
          "nemo.collections.llm.modelopt",
          *(f"nemo.collections.{name}" for name in (
              "asr", "audio", "diffusion", "multimodal", "nlp", "speechlm", "tts", "vlm")))
REAL = ("nemo.", "megatron.", "torch.", "lightning.", "fiddle.", "nemo_run.", "numpy.", "nvidia.",
        "transformer_engine", "apex", "amp_C", "flash", "triton", "cupy")


class _Anything(type):
    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *values, **_: values[0] if values and callable(values[0]) else lambda f: f


class _Empty(types.ModuleType):
    __path__: list[str] = []
    __version__ = "0.0"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Anything(name, (), {
            "__module__": self.__name__, "__init__": lambda self, *_, **__: None,
            "__call__": lambda self, *values, **_: values[0] if values else None})
        setattr(self, name, value)
        return value


class _Loader(importlib.abc.Loader):
    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


class _Unused(importlib.abc.MetaPathFinder):
    """Before all others: modules that are there, and are not wanted."""

    def find_spec(self, name, path, target=None):
        is_unused = name.startswith(UNUSED)
        return importlib.machinery.ModuleSpec(name, _Loader()) if is_unused else None


class _Absent(importlib.abc.MetaPathFinder):
    """After all others: what NeMo imports and nobody has."""

    def __init__(self):
        self.packages: set[str] = set()

    def find_spec(self, name, path, target=None):
        frame = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        asks = frame.f_globals.get("__name__", "") if frame else ""
        package = name.split(".")[0]
        if name.startswith(REAL) or not (
                asks.startswith(("nemo.", "nemo_run")) or package in self.packages):
            return None
        self.packages.add(package)
        return importlib.machinery.ModuleSpec(name, _Loader())


sys.meta_path.insert(0, _Unused())
sys.meta_path.append(_Absent())

import megatron.core.dist_checkpointing.strategies.filesystem_async as writer  # noqa: E402
import nemo.collections.llm.modelopt.distill.utils as distillation  # noqa: E402
import nemo.collections.llm.modelopt.model_utils as modelopt  # noqa: E402
import nemo.lightning as nl  # noqa: E402
import nemo.lightning.io.pl as checkpoint_io  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from nemo.collections.llm.gpt.data.mock import MockDataModule  # noqa: E402
from nemo.collections.llm.gpt.model.base import (  # noqa: E402
    GPTConfig,
    GPTModel,
    gpt_data_step,
    local_layer_spec,
)
from nemo.lightning import io  # noqa: E402
from nemo.utils.app_state import AppState  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import golden.run.megatron_on_cpu as on_cpu  # noqa: E402

LENGTH, RESULTS = 32, []


def _queue_of_results():
    if not RESULTS:
        RESULTS.append(multiprocessing.get_context("fork").Manager().Queue())
    return RESULTS[0]


def fit() -> None:
    torch.cuda.device_count = lambda: 8
    on_cpu._fit_communication()
    on_cpu._fit_modules()
    on_cpu.fit_optimizers()
    on_cpu._fit_random_numbers()
    writer._get_write_results_queue = _queue_of_results
    distillation.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    modelopt.save_modelopt_state = lambda *_, **__: None
    modelopt.restore_modelopt_state = lambda *_, **__: None
    checkpoint_io._fix_tensors_device = lambda checkpoint: checkpoint  # to a GPU


class Tokenizer(io.IOMixin):
    eos_id = 0

    def __init__(self, vocab_size=100):
        self.vocab_size = vocab_size


def held_by_this_rank(trainer) -> dict:
    """{name: {"axis": ..., "weight": ..., state: ...}}; elements of other ranks are NaN."""
    held, names = {}, {}
    for net in trainer.strategy.megatron_parallel:
        while hasattr(net, "module"):
            net = net.module
        first = net.decoder.layers[0].layer_number - 1
        for name, param in net.named_parameters():
            steps = name.split(".")
            if name.startswith("decoder.layers."):
                steps[2] = str(int(steps[2]) + first)
            names[param] = ".".join(steps)
            is_split = getattr(param, "tensor_model_parallel", False)
            held[names[param]] = {"axis": param.partition_dim if is_split else None,
                                  "weight": param.detach().float()}
    outer = trainer.strategy.optimizers[0].mcore_optimizer
    for optimizer in getattr(outer, "chained_optimizers", [outer]):
        for models, shards in zip(optimizer.model_float16_groups,
                                  optimizer.shard_fp32_from_float16_groups, strict=True):
            for param, shard in zip(models, shards, strict=True):
                own = optimizer._get_model_param_range_map(param)["param"]
                states = {"fp32_param": shard, **optimizer.optimizer.state[shard]}
                for state, value in states.items():
                    whole = torch.full((param.numel(),), float("nan"))
                    whole[own.start:own.end] = value.detach().flatten()
                    held[names[param]][state] = whole.view(param.shape)
    return held


def joined(name: str, axis: int | None, parts: dict[int, torch.Tensor]) -> torch.Tensor:
    ranks = [parts[rank] for rank in sorted(parts)]
    if axis is None:
        return ranks[0]
    if name.endswith("linear_fc1.weight"):  # gate and up
        return torch.cat([rank.chunk(2)[half] for half in range(2) for rank in ranks])
    return torch.cat(ranks, axis)


def live_state(trainer) -> dict[str, torch.Tensor]:
    """Weights by their names, masters and moments as STATE.NAME, of all ranks."""
    everyone: list = [None] * dist.get_world_size()
    mine = (parallel_state.get_tensor_model_parallel_rank(), held_by_this_rank(trainer))
    dist.all_gather_object(everyone, mine)
    parts: dict[tuple, dict[int, torch.Tensor]] = {}
    for rank, held in everyone:
        for name, states in held.items():
            axis = states.pop("axis")
            for state, value in states.items():
                known = parts.setdefault((name, axis, state), {})
                old = known.get(rank, value)
                known[rank] = torch.where(torch.isnan(old), value, old)
    return {(name if state == "weight" else f"{state}.{name}"): joined(name, axis, ranks)
            for (name, axis, state), ranks in parts.items()}


class Record(Callback):
    def __init__(self, out: Path):
        self.out = out

    def _write(self, trainer, name: str) -> None:
        state = live_state(trainer)
        if dist.get_rank() == 0:
            save_file({key: one.contiguous() for key, one in state.items()}, self.out / name)

    def on_train_start(self, trainer, _module) -> None:
        if "CKPT" in os.environ:
            self._write(trainer, "started.safetensors")

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == 3:
            self._write(trainer, "live.safetensors")


def data_step(batches, *values, **options):
    batch = gpt_data_step(batches, *values, **options)
    batch.setdefault("attention_mask", torch.tril(torch.ones(1, 1, LENGTH, LENGTH)) < 0.5)
    return batch


def main() -> None:
    out, tensor, pipeline = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    fit()
    out.mkdir(parents=True, exist_ok=True)
    AppState().log_dir = out
    config = GPTConfig(
        num_layers=2, hidden_size=16, num_attention_heads=4, num_query_groups=2,
        ffn_hidden_size=24, seq_length=LENGTH, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", add_bias_linear=False,
        position_embedding_type="rope", share_embeddings_and_output_weights=False,
        make_vocab_size_divisible_by=16, transformer_layer_spec=local_layer_spec,
        gradient_accumulation_fusion=False, cross_entropy_loss_fusion=False,
        masked_softmax_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False,
        persist_layer_norm=False, hidden_dropout=0.0, attention_dropout=0.0)
    data = MockDataModule(
        seq_length=LENGTH, micro_batch_size=1, global_batch_size=4, tokenizer=Tokenizer(),
        num_train_samples=64, num_val_samples=8, num_test_samples=8, num_workers=0,
        create_attention_mask=True, pin_memory=False)
    adam = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True,
                           weight_decay=0.1)
    model = GPTModel(config, tokenizer=data.tokenizer,
                     optim=nl.MegatronOptimizerModule(config=adam))
    trainer = nl.Trainer(
        devices=int(os.environ["WORLD_SIZE"]), num_nodes=1, accelerator="cpu", max_steps=4,
        limit_val_batches=0, num_sanity_val_steps=0, val_check_interval=16, log_every_n_steps=1,
        logger=False, enable_progress_bar=False,
        strategy=nl.MegatronStrategy(
            tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
            pipeline_dtype=torch.bfloat16, ddp="megatron", gradient_as_bucket_view=True,
            process_group_backend="gloo", ckpt_async_save=False),
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
        callbacks=[Record(out), nl.ModelCheckpoint(
            dirpath=str(out), save_last=False, every_n_train_steps=3, filename="{step}",
            save_top_k=1, monitor="step", mode="max")])
    model.config.data_step_fn = data_step
    trainer.fit(model, data, ckpt_path=os.environ.get("CKPT"))


if __name__ == "__main__":
    main()

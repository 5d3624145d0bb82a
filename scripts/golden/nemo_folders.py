#!/usr/bin/env python3
"""A checkpoint of NeMo 2 as its own trainer saves it, on CPUs, and the state that the run had.

usage: PYTHONPATH=scripts torchrun --nproc_per_node RANKS scripts/golden/nemo_folders.py \
           OUT TP PP [EP [dense|mixtral|deepseek|adapters]]

Writes OUT/step=2/{weights,context} after three steps, by nemo_toolkit 2.4.0 with lightning 2.4.0,
megatron-core 0.13.1, nemo_run, fiddle, hydra-core and torch 2.11 (pip install --no-deps), and
OUT/live.safetensors; OUT/next.safetensors after a fourth step, and losses of each rank. With
CKPT=FOLDER in the environment the run starts from that folder, and OUT/started.safetensors is what
it loaded; adapters (LoRA) are trained of the dense model in FOLDER. Packages that NeMo imports and
this does not use are stood in for by empty modules; devices and the fused Adam are those of
golden.run. tests/golden/nemo.tar.xz: RANKS TP PP of 2 1 1 and 4 2 2, before there were schedules;
nemo_experts.tar.xz: 2 1 1 2 deepseek, and 2 1 1 1 adapters.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import sys
import types
from pathlib import Path

from golden.run.devices import Inert, replace_devices

replace_devices()

import ml_dtypes  # noqa: E402, F401  # numpy's bfloat16
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
import megatron.core.transformer.dot_product_attention as dot_product_attention  # noqa: E402
import megatron.core.transformer.moe.moe_utils as router  # noqa: E402
import megatron.core.transformer.moe.token_dispatcher as dispatcher  # noqa: E402
import nemo.collections.llm.modelopt.distill.utils as distillation  # noqa: E402
import nemo.collections.llm.modelopt.model_utils as modelopt  # noqa: E402
import nemo.collections.llm.peft.lora as lora  # noqa: E402
import nemo.collections.llm.peft.utils as adapters  # noqa: E402
import nemo.lightning as nl  # noqa: E402
import nemo.lightning.io.pl as checkpoint_io  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.transformer.torch_norm import WrappedTorchNorm  # noqa: E402
from nemo.collections.llm.gpt.data.mock import MockDataModule  # noqa: E402
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule  # noqa: E402
from nemo.collections.llm.gpt.model.base import (  # noqa: E402
    GPTConfig,
    GPTModel,
    gpt_data_step,
    local_layer_spec,
)
from nemo.collections.llm.gpt.model.deepseek import DeepSeekModel, DeepSeekV3Config  # noqa: E402
from nemo.collections.llm.gpt.model.mixtral import MixtralConfig, MixtralModel  # noqa: E402
from nemo.lightning import io  # noqa: E402
from nemo.lightning.pytorch.strategies.utils import RestoreConfig  # noqa: E402
from nemo.lightning.resume import AdapterPath  # noqa: E402
from nemo.utils.app_state import AppState  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import golden.run.megatron_on_cpu as on_cpu  # noqa: E402

LENGTH, RESULTS = 32, []


def _queue_of_results():
    if not RESULTS:
        RESULTS.append(multiprocessing.get_context("fork").Manager().Queue())
    return RESULTS[0]


def without_channels(make):
    """MLA of core 0.13 states channels that its own attention takes of config.kv_channels."""
    return lambda self, *values, k_channels=None, v_channels=None, **options: make(
        self, *values, **options)


def marked_norm(make):
    """Its gradients are summed over tensor-parallel ranks, as TransformerEngine's are."""

    def norm_of(owner, config, *values, **options):
        norm = make(owner, config, *values, **options)
        for param in norm.parameters():
            param.sequence_parallel = config.sequence_parallel
        return norm

    return norm_of


def as_lists(value, as_numpy=False, **_):
    return value.numpy() if as_numpy and torch.is_tensor(value) else value


def fit() -> None:
    torch.cuda.device_count = lambda: 8
    on_cpu._fit_communication()
    on_cpu._fit_modules()
    WrappedTorchNorm.__new__ = marked_norm(WrappedTorchNorm.__new__)
    attention = dot_product_attention.DotProductAttention
    attention.__init__ = without_channels(attention.__init__)
    on_cpu.fit_optimizers()
    on_cpu._fit_random_numbers()
    writer._get_write_results_queue = _queue_of_results
    distillation.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    modelopt.save_modelopt_state = lambda *_, **__: None
    modelopt.restore_modelopt_state = lambda *_, **__: None
    Inert.record_event = lambda *_: Inert()
    dispatcher.maybe_move_tensor_to_cpu = as_lists
    lora.HAVE_TE = adapters.HAVE_TE = False
    adapters.TECL = adapters.TERL = ()
    lora.te = types.SimpleNamespace(Linear=torch.nn.Linear)
    router.te_general_gemm = None  # not defined without TransformerEngine
    checkpoint_io._fix_tensors_device = lambda checkpoint: checkpoint  # to a GPU


class Tokenizer(io.IOMixin):
    eos_id = 0

    def __init__(self, vocab_size=100):
        self.vocab_size = vocab_size


class Samples(MockDataModule):
    """Its numbers, resumed where a run's own data is."""

    init_global_step = 0
    state_dict = PreTrainingDataModule.state_dict
    load_state_dict = PreTrainingDataModule.load_state_dict


def held_by_this_rank(trainer) -> dict:
    """{name: {"axis": ..., "weight": ..., state: ...}}; elements of other ranks are NaN."""
    held, names = {}, {}
    for net in trainer.strategy.megatron_parallel:
        while hasattr(net, "module"):
            net = net.module
        first = net.decoder.layers[0].layer_number - 1
        experts = (net.config.num_moe_experts or 0) // net.config.expert_model_parallel_size
        before = experts * parallel_state.get_expert_model_parallel_rank()
        biases = [one for one in net.named_buffers() if one[0].endswith("expert_bias")]
        for name, param in (*net.named_parameters(), *biases):
            steps = name.split(".")
            if name.startswith("decoder.layers."):
                steps[2] = str(int(steps[2]) + first)
            if "local_experts" in steps:
                at = steps.index("local_experts") + 1
                steps[at] = str(int(steps[at]) + before)
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
        self.out, self.is_started = out, False

    def _write(self, trainer, name: str) -> None:
        state = live_state(trainer)
        if dist.get_rank() == 0:
            save_file({key: one.contiguous() for key, one in state.items()}, self.out / name)

    def on_train_batch_start(self, trainer, *_) -> None:
        is_first, self.is_started = not self.is_started, True
        if is_first and trainer.ckpt_path:
            self._write(trainer, "started.safetensors")

    def on_train_batch_end(self, trainer, *_) -> None:
        losses = self.out / f"loss_{dist.get_rank()}.txt"
        with losses.open("a") as file:
            loss = float(trainer.callback_metrics["reduced_train_loss"])
            file.write(f"{trainer.global_step} {loss.hex()}\n")
        if trainer.global_step in (3, 4):
            self._write(trainer, {3: "live", 4: "next"}[trainer.global_step] + ".safetensors")


def data_step(batches, *values, **options):
    batch = gpt_data_step(batches, *values, **options)
    batch.setdefault("attention_mask", torch.tril(torch.ones(1, 1, LENGTH, LENGTH)) < 0.5)
    return batch


# What CPUs can do, of every model.
SIZES = dict(
    num_layers=2, hidden_size=16, num_attention_heads=4, ffn_hidden_size=24, seq_length=LENGTH,
    bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
    make_vocab_size_divisible_by=int(os.environ.get("DIVISOR", 16)),
    gradient_accumulation_fusion=False,
    cross_entropy_loss_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
    apply_rope_fusion=False, persist_layer_norm=False, hidden_dropout=0.0, attention_dropout=0.0)


def make_config(kind: str):
    if kind == "mixtral":
        return MixtralConfig(
            **SIZES, num_query_groups=2, num_moe_experts=4, bias_activation_fusion=False,
            transformer_layer_spec=local_layer_spec), MixtralModel
    if kind == "deepseek":  # its specification is local layers where TransformerEngine is not
        return DeepSeekV3Config(
            **SIZES, num_moe_experts=4, moe_ffn_hidden_size=8, moe_layer_freq=[0, 1],
            moe_shared_expert_intermediate_size=8, moe_router_topk=2, moe_router_num_groups=2,
            moe_router_group_topk=1, moe_grouped_gemm=False, q_lora_rank=8, kv_lora_rank=8,
            kv_channels=4,
            moe_shared_expert_overlap=False, qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=4,
            bias_activation_fusion=False, moe_permute_fusion=False), DeepSeekModel
    return GPTConfig(
        **SIZES, num_query_groups=2, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, normalization="RMSNorm", add_bias_linear=False,
        position_embedding_type="rope", share_embeddings_and_output_weights=False,
        transformer_layer_spec=local_layer_spec), GPTModel


def main() -> None:
    out, (tensor, pipeline) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    experts = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    kind = sys.argv[5] if len(sys.argv) > 5 else "dense"
    fit()
    out.mkdir(parents=True, exist_ok=True)
    AppState().log_dir = out
    config, model_type = make_config(kind)
    tokenizer = Tokenizer(100 if kind in ("dense", "adapters") else 28)
    data = Samples(
        seq_length=LENGTH, micro_batch_size=1, global_batch_size=4, tokenizer=tokenizer,
        num_train_samples=64, num_val_samples=8, num_test_samples=8, num_workers=0,
        create_attention_mask=True, pin_memory=False)
    adam = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True,
                           weight_decay=0.1)
    schedule = nl.lr_scheduler.CosineAnnealingScheduler(
        max_steps=10, warmup_steps=2, constant_steps=0, min_lr=1e-5)
    start = os.environ.get("CKPT")
    added = [lora.LoRA(dim=4, alpha=8)] if kind == "adapters" else []
    model = model_type(config, tokenizer=tokenizer, model_transform=added[0] if added else None,
                       optim=nl.MegatronOptimizerModule(config=adam, lr_scheduler=schedule))
    trainer = nl.Trainer(
        devices=int(os.environ["WORLD_SIZE"]), num_nodes=1, accelerator="cpu", max_steps=4,
        limit_val_batches=0, num_sanity_val_steps=0, val_check_interval=16, log_every_n_steps=1,
        logger=False, enable_progress_bar=False,
        strategy=nl.MegatronStrategy(
            tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
            expert_model_parallel_size=experts, sequence_parallel=tensor > 1 and experts > 1,
            pipeline_dtype=torch.bfloat16, ddp="megatron", gradient_as_bucket_view=True,
            process_group_backend="gloo", ckpt_async_save=False),
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
        callbacks=[*added, Record(out), nl.ModelCheckpoint(
            dirpath=str(out), save_last=False, every_n_train_steps=3, filename="{step}",
            save_top_k=1, monitor="step", mode="max")])
    metadata = Path(f"{start}/weights/adapter_metadata.json")
    if added and metadata.exists():
        base = json.loads(metadata.read_text())["model_ckpt_path"]
        start = AdapterPath(start, base_model_path=Path(base))
    elif added:
        trainer.strategy.restore_config, start = RestoreConfig(path=start), None
    model.config.data_step_fn = data_step
    trainer.fit(model, data, ckpt_path=start)


if __name__ == "__main__":
    main()

"""Logits that Megatron-Core has of a state that its ranks trained, joined in a model of one
rank."""

from __future__ import annotations

import os
import re
import shutil
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from golden.run import computing
from golden.run.command_line import RunCase, Sizes, with_sizes
from golden.run.launch import in_ranks
from golden.run.logit_cases import FORMS, LOCAL, LogitCase
from golden.run.training import MadeUpValues, Run, builder_of, start
from golden.run.write_case import import_tree

KEPT = 32  # logits of the last positions


@dataclass(frozen=True)
class Tree:
    """Megatron-LM's code, and where its imports are."""

    folder: Path
    packages: list[Path]


class LargeValues(MadeUpValues):
    """Weights so large that what a layer computes is seen in the logits."""

    def weight(self, name, shape) -> torch.Tensor:
        values = super().weight(name, shape)
        offset = 1 if "norm" in name and name.endswith("weight") else 0
        return (values - offset) * 3 + offset


def fit_attention() -> None:
    """Latent attention asks its core for other sizes of values than Megatron's own core takes."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    make = DotProductAttention.__init__

    def with_channels(self, *values, k_channels=None, v_channels=None, **options):
        make(self, *values, **options)
        if v_channels:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    DotProductAttention.__init__ = with_channels


def _train_here(run: RunCase, folder: Path) -> None:
    values = LargeValues(run.family)
    os.chdir(folder)
    ranks = Run(run.command_line())
    ranks.fill(values)
    for number in range(run.family.steps):
        ranks.step(values, number)
    ranks.save(run.family.steps)
    state, _ = ranks.state()
    if dist.get_rank() == 0:
        save_file(state, folder / "state.safetensors")


def _model_of_one_rank(case: LogitCase, run: RunCase) -> torch.nn.Module:
    """In float32, so that nothing is rounded on the way; of Megatron's own modules where it can."""
    import sys

    from megatron.training import get_args

    words = [word for word in with_sizes(run.command_line(), Sizes("dp1")) if word != "--bf16"]
    if not case.is_mixed:
        words = [word for word in words if word != "--moe-grouped-gemm"] + LOCAL.split()
    sys.argv = ["pretrain_gpt.py", *(word.replace("|", "") for word in words)]
    start()
    return builder_of(get_args())(get_args(), True, True).float().eval()


# Names that TransformerEngine's modules have for those of Megatron's own.
ENGINE_NAMES = (
    (r"self_attention\.linear_qkv\.layer_norm_", "input_layernorm."),
    (r"mlp\.linear_fc1\.layer_norm_", "pre_mlp_layernorm."),
    (r"\.linear_(q|kv)_up_proj\.layer_norm_", r".\1_layernorm."),
    (r"\.experts\.(linear_fc\d)\.(weight|bias)(\d+)$", r".experts.local_experts.\3.\1.\2"),
)


def _own_name(name: str) -> str:
    for engine, own in ENGINE_NAMES:
        name = re.sub(engine, own, name)
    return name


def _compute_here(case: LogitCase, run: RunCase, folder: Path) -> None:
    model, length = _model_of_one_rank(case, run), case.length
    state = load_file(folder / "state.safetensors")
    state = {name.removeprefix("model."): t.float() for name, t in state.items()
             if name.startswith("model.")}
    if not case.is_mixed:
        state = {_own_name(name): tensor for name, tensor in state.items()}
    wanted = dict(model.named_parameters()) | {
        name: t for name, t in model.named_buffers() if name in model.state_dict()}
    if wanted.keys() != state.keys():
        raise RuntimeError(f"names differ: {sorted(wanted.keys() ^ state.keys())}")
    with torch.no_grad():
        for name, tensor in state.items():
            wanted[name].copy_(tensor)
        tokens = torch.arange(1, length + 1).view(1, -1) * 17 % 59
        hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        logits = model(tokens, torch.arange(length).view(1, -1), hidden.view(1, 1, length, length))
    save_file({"tokens": tokens, "logits": logits[:, -KEPT:].contiguous()},
              folder / "logits.safetensors")


def _in_ranks_of_tree(tree: Tree, stand_ins: tuple[bool, bool], world: int, job, logs) -> bool:
    """In a process of its own, which imports the tree with what stands in for TransformerEngine, or
    without, and lets it compute, or not."""
    engine, computes = stand_ins
    process = os.fork()
    if process == 0:
        code = 1
        try:
            if computes:
                computing.install()
            import_tree(tree.folder, tree.packages, engine)
            fit_attention()
            code = 1 if in_ranks(world, job, logs) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(process, 0)[1] == 0


def write_logits(case: LogitCase, form: str, tree: Tree, out: Path) -> str:
    """FOLDER/ckpt as the ranks saved it, FOLDER/logits.safetensors. What went wrong."""
    run = case.run(form, FORMS[form])
    folder, logs = out / run.name, out / "logs" / run.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jobs = (((case.has_engine, False), run.sizes.world, lambda _: _train_here(run, folder)),
            ((case.is_mixed, case.is_mixed), 1, lambda _: _compute_here(case, run, folder)))
    for stand_ins, world, job in jobs:
        if not _in_ranks_of_tree(tree, stand_ins, world, job, logs):
            return f"see {logs}"
    shutil.rmtree(logs)
    return ""

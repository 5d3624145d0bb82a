#!/usr/bin/env python3
"""Builds tiny real models with one field of the configuration changed, tells what of it differs.

    build_arguments.py RESULTS.json [--engine] [FIELD...]

Two Gloo processes on the CPU with the Megatron-Core that Python finds (PYTHONPATH: another tree).
Each family (dense, experts, latent attention) is built at TP 1 and at TP 2, as it is and with each
field at other values. The weights of TP 1 are cut for TP 2 as Megatron's sharded_state_dict says.
RESULTS maps FAMILY.FIELD to a list of {value, differs, problem}; differs has some of:

    keys, shapes, chunks   of sharded_state_dict against the unchanged model
    forward                the output of the same weights
    reshard                the output at TP 2 against TP 1: rows mean something else than they did

`control` is a model whose rows do, so that the last one must be found. With --engine the modules
are TransformerEngine's, of which a stand-in has the parameters alone: there is no forward pass.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.machinery
import json
import sys
import tempfile
import types
import typing
import warnings
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
warnings.filterwarnings("ignore")

from golden.run import devices, te_modules  # noqa: E402

ENGINE = "--engine" in sys.argv


def replace_module(path: str, function: str) -> None:
    """One that only GPUs have: its function cannot be called."""
    for end in range(1, path.count(".") + 2):
        name = ".".join(path.split(".")[:end])
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    setattr(sys.modules[path], function, replace_module)


devices.replace_devices()
if ENGINE:
    te_modules.install()
    for module, name in (("fla.modules.l2norm", "l2norm"),
                         ("fla.modules.convolution", "causal_conv1d"),
                         ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
                         ("fla.ops.kda", "chunk_kda"), ("causal_conv1d", "causal_conv1d_fn")):
        replace_module(module, name)
typing.override = getattr(typing, "override", lambda method: method)  # before Python 3.12

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (  # noqa: E402
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import (  # noqa: E402
    MLATransformerConfig,
    TransformerConfig,
)

from golden.run.launch import in_ranks  # noqa: E402

if not ENGINE:
    moe_utils.te_general_gemm = None
    multi_latent_attention.HAVE_TE = False

VOCABULARY, LENGTH = 64, 16
BASE = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 8, "num_query_groups": 4,
    "ffn_hidden_size": 48, "gated_linear_unit": True, "activation_func": F.silu,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "bias_activation_fusion": False,
    "use_cpu_initialization": True,
}
EXPERTS = {"num_moe_experts": 4, "moe_grouped_gemm": ENGINE, "moe_router_topk": 2,
           "moe_ffn_hidden_size": 24, "moe_shared_expert_intermediate_size": 32,
           "add_bias_linear": False}
LATENT = {"multi_latent_attention": True, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_head_dim": 8,
          "qk_pos_emb_head_dim": 4, "v_head_dim": 8, "num_query_groups": 8, "rope_type": "rope",
          "add_bias_linear": False, "qk_layernorm": True, "kv_channels": 8}
LINEAR = {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 2,
          "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "linear_num_key_heads": 4, "linear_num_value_heads": 8, "add_bias_linear": False,
          "normalization": "RMSNorm"}
FAMILIES = {"dense": (TransformerConfig, {}), "experts": (TransformerConfig, EXPERTS),
            "latent": (MLATransformerConfig, LATENT)}
if ENGINE:
    FAMILIES["linear"] = (TransformerConfig, LINEAR)
# Where a type does not tell a value that can be built.
VALUES = {"activation_func": [F.gelu], "normalization": ["RMSNorm"], "kv_channels": [8],
          "num_query_groups": [2, 8], "num_attention_heads": [4], "hidden_size": [64],
          "num_layers": [4], "moe_layer_freq": [2, [0, 1]], "softmax_type": ["learnable"],
          "mtp_num_layers": [1], "window_size": [[4, 0]], "no_rope_freq": [[1, 0]],
          "num_moe_experts": [8], "recompute_granularity": ["selective"], "init_method": [],
          "moe_router_score_function": ["sigmoid"],
          "moe_router_load_balancing_type": ["none", "quantile_balancing"],
          "layernorm_epsilon": [0.1],
          "moe_token_dispatcher_type": ["alltoall"], "moe_router_dtype": ["fp32"],
          "moe_expert_capacity_factor": [1.0], "moe_latent_size": [16], "rope_type": ["yarn"],
          "softmax_scale": [0.5], "params_dtype": [], "activation_func_clamp_value": [0.05],
          "glu_linear_offset": [0.5],
          "rotary_scaling_factor": [8], "attention_dropout": [0.1], "hidden_dropout": [0.1]}
# What a field needs beside it, in the unchanged model too.
COMPANIONS = {"moe_router_group_topk": {"moe_router_num_groups": 2},
              "moe_router_enable_expert_bias": {"moe_router_score_function": "sigmoid"},
              "moe_pad_expert_input_to_capacity": {"moe_expert_capacity_factor": 1.0},
              "variable_seq_lengths": {"moe_token_dispatcher_type": "alltoall"},
              "max_position_embeddings": {"position_embedding_type": "learned_absolute"}}
# Arguments of the model's constructor: name among args, and there.
MODEL = {"position_embedding_type": "position_embedding_type", "rotary_percent": "rotary_percent",
         "rotary_base": "rotary_base", "max_position_embeddings": "max_sequence_length",
         "padded_vocab_size": "vocab_size", "use_rope_scaling": "rope_scaling",
         "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
         "fp16_lm_cross_entropy": "fp16_lm_cross_entropy",
         "share_embeddings_and_output_weights": "share_embeddings_and_output_weights"}
MODEL_VALUES = {"position_embedding_type": ["learned_absolute"], "rotary_percent": [0.5],
                "rotary_base": [500], "max_position_embeddings": [32], "padded_vocab_size": [128],
                "use_rope_scaling": [True], "rotary_seq_len_interpolation_factor": [2.0],
                "fp16_lm_cross_entropy": [True], "share_embeddings_and_output_weights": [True]}
# The output is drawn anew.
RANDOM = {"moe_router_force_load_balancing", "moe_input_jitter_eps", "attention_dropout",
          "hidden_dropout", "moe_router_force_biased"}
# Places in a grid, not settings of a model; what they do is docs/resharding.md's.
GRID = {"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
        "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
        "expert_tensor_parallel_size"}


def reversed_rows(rows: torch.Tensor) -> torch.Tensor:
    return F.silu(rows).flip(-1)


CONTROL = {"gated_linear_unit": False, "activation_func": reversed_rows}


def other_values(field: dataclasses.Field, kind: object, before: object) -> list:
    if field.name in VALUES:
        return [value for value in VALUES[field.name] if value != before]
    kinds = typing.get_args(kind) or (kind,)
    if isinstance(before, bool) or bool in kinds:
        return [not before]
    if typing.get_origin(kind) is typing.Literal:
        return [value for value in kinds if value != before]
    if isinstance(before, int) or (before is None and int in kinds):
        return [2 if before in (None, 0, 1) else before * 2]
    if isinstance(before, float) or (before is None and float in kinds):
        return [0.5 if before in (None, 0.0) else before * 2]
    return []


class LatentAttention(DotProductAttention):
    """For keys as wide as values, as LATENT has them; TransformerEngine's takes any."""

    def __init__(self, *values: object, k_channels: object = None, v_channels: object = None,
                 **options: object):
        super().__init__(*values, **options)
        if v_channels not in (None, self.config.kv_channels):
            raise ValueError("only TransformerEngine attends with values of another width")


def layers_of(config: TransformerConfig) -> object:
    if config.experimental_attention_variant:
        return get_transformer_block_with_experimental_attention_variant_spec(config)
    spec = get_gpt_decoder_block_spec(config, ENGINE)
    if config.multi_latent_attention and not ENGINE:
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = LatentAttention
    return spec


def set_sizes(tensor: int) -> None:
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor)
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)


def build(family: str, changed: dict, tensor: int) -> GPTModel:
    kind, extra = FAMILIES[family]
    changed = {name: value for name, value in changed.items()
               if name != "sequence_parallel" or tensor > 1}
    of_model = {MODEL[name]: value for name, value in changed.items() if name in MODEL}
    of_config = {name: value for name, value in changed.items() if name not in MODEL}
    config = kind(**(BASE | extra | of_config | {"tensor_model_parallel_size": tensor}))
    plain = {"vocab_size": VOCABULARY, "max_sequence_length": LENGTH, "parallel_output": False,
             "position_embedding_type": "rope", "share_embeddings_and_output_weights": False}
    model = GPTModel(config=config, transformer_layer_spec=layers_of(config), **(plain | of_model))
    return model.eval()


def shards_of(model: GPTModel) -> list[ShardedTensor]:
    state = model.sharded_state_dict()
    apply_factories(state)
    return [value for value in nested_values(state) if isinstance(value, ShardedTensor)]


def place_of(shard: ShardedTensor) -> tuple[slice | int, ...]:
    size = (1,) * shard.prepend_axis_num + tuple(shard.local_shape)
    place = [slice(at, at + n) for at, n in zip(shard.global_offset, size)]
    return tuple(at.start if i < shard.prepend_axis_num else at for i, at in enumerate(place))


def chunks_of(shards: list[ShardedTensor]) -> dict[str, list]:
    """Of each key: the whole shape, and the place of each chunk."""
    found: dict[str, list] = {}
    for shard in shards:
        found.setdefault(shard.key, [list(shard.global_shape)]).append(
            [list(shard.global_offset), list(shard.local_shape)])
    return found


def fill(model: GPTModel) -> None:
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(tensor.shape, generator=generator) * 0.3
            tensor.copy_(values + 1 if "norm" in name and "weight" in name else values)


def gather(shards: list[ShardedTensor]) -> dict[str, torch.Tensor]:
    whole: dict[str, torch.Tensor] = {}
    for shard in shards:
        into = whole.setdefault(shard.key, torch.zeros(shard.global_shape, dtype=shard.dtype))
        into[place_of(shard)] = shard.data.detach()
    return whole


def scatter(whole: dict[str, torch.Tensor], shards: list[ShardedTensor]) -> None:
    with torch.no_grad():
        for shard in shards:
            shard.data.copy_(whole[shard.key][place_of(shard)])


def forward(model: GPTModel) -> torch.Tensor:
    tokens = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCABULARY
    positions = torch.arange(LENGTH).expand(2, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    with torch.no_grad():
        return model(tokens, positions, mask).float()


@dataclasses.dataclass
class Trial:
    family: str
    name: str
    value: object
    beside: dict
    differs: set = dataclasses.field(default_factory=set)
    problem: str = ""
    chunks: tuple = ()
    whole: dict = dataclasses.field(default_factory=dict)
    output: torch.Tensor | None = None

    def run(self, tensor: int) -> None:
        own = CONTROL if self.name == "control" else {self.name: self.value}
        model = build(self.family, self.beside | (own if self.name else {}), tensor)
        shards = shards_of(model)
        self.chunks += (chunks_of(shards),)
        if ENGINE:
            return
        if tensor == 1:
            fill(model)
            self.whole, self.output = gather(shards), forward(model)
        else:
            scatter(self.whole, shards)
            if not close(forward(model), self.output) and self.name not in RANDOM:
                self.differs.add("reshard")
            self.whole = {}

    def compare(self, base: Trial) -> None:
        for mine, other in zip(self.chunks, base.chunks):
            if mine.keys() != other.keys():
                self.differs.add("keys")
            for key in mine.keys() & other.keys():
                if mine[key][0] != other[key][0]:
                    self.differs.add("shapes")
                elif mine[key] != other[key]:
                    self.differs.add("chunks")
        if not ENGINE and not close(self.output, base.output):
            self.differs.add("forward")


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=2e-3, atol=2e-3)


def trials(wanted: list[str]) -> list[Trial]:
    made = []
    for family, (kind, extra) in FAMILIES.items():
        made += [Trial(family, "", None, beside) for beside in ({}, *COMPANIONS.values())]
        made.append(Trial(family, "control", None, {}))
        kinds = typing.get_type_hints(kind)
        before = vars(kind(**(BASE | extra)))
        values = {field.name: other_values(field, kinds[field.name], before[field.name])
                  for field in dataclasses.fields(kind) if field.init and field.name not in GRID}
        for name, others in (values | MODEL_VALUES).items():
            if wanted and name not in wanted:
                continue
            made += [Trial(family, name, value, COMPANIONS.get(name, {})) for value in others]
    return made


def run_all(rank: int, wanted: list[str], results: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    made = trials(wanted)
    for tensor in (1, 2):
        set_sizes(tensor)
        for trial in made:
            if trial.problem:
                continue
            try:
                trial.run(tensor)
            except Exception as error:  # noqa: BLE001  what cannot be built is told
                said = " ".join(str(error).split())
                trial.problem = f"TP {tensor}: {type(error).__name__}: {said}"
    if rank == 0:
        results.write_text(json.dumps(compared(made), indent=1))


def compared(made: list[Trial]) -> dict[str, list]:
    base = {(trial.family, str(trial.beside)): trial for trial in made if not trial.name}
    found: dict[str, list] = {}
    for trial in made:
        unchanged = base[trial.family, str(trial.beside)]
        if not trial.problem and unchanged.problem:
            trial.problem = f"unchanged: {unchanged.problem}"
        if not trial.problem:
            trial.compare(unchanged)
        value = getattr(trial.value, "__name__", str(trial.value))
        found.setdefault(f"{trial.family}.{trial.name}", []).append(
            {"value": value, "differs": sorted(trial.differs), "problem": trial.problem[:200]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--engine", action="store_true", help="modules of TransformerEngine")
    parser.add_argument("fields", nargs="*")
    chosen = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as logs:
        failed = in_ranks(2, lambda rank: run_all(rank, chosen.fields, chosen.results), Path(logs),
                          timeout_s=1500)
        for rank in failed:
            print((Path(logs) / f"rank{rank}.log").read_text()[-3000:], file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/golden/optim_layout: what the real megatron-core answers, for liboptim's tests.

usage: make_layout_golden.py FOLDER        (needs torch and megatron-core==0.16.1; CPU, one process)

Every expectation comes from a call of the real function; this script only makes up the questions
(seeded, so that the files come out the same every time) and writes question and answer as JSON.
"""

import fnmatch
import json
import logging
import os
import random
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import mapping  # noqa: E402
from megatron.core.dist_checkpointing import optimizer as state_mapping  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import _get_param_groups, get_standard_config_overrides  # noqa: E402
from megatron.core.optimizer.layer_wise_optimizer import (  # noqa: E402
    LayerWiseDistributedOptimizer,
)
from megatron.core.optimizer.optimizer_config import (  # noqa: E402
    OptimizerConfig,
    ParamKey,
    ParamPredicate,
)
from megatron.core.transformer import TransformerConfig  # noqa: E402

GROUP_FIELDS = ("is_expert_parallel", "default_config", "wd_mult", "lr_mult", "is_decoupled_lr",
                "max_lr", "min_lr", "optimizer", "start_wd", "end_wd", "eps")
ATTRIBUTES = ("tensor_model_parallel", "partition_dim", "is_embedding_or_output_parameter")


def write(folder, name, value):
    """One element per line: small files, readable differences."""
    lines = ",\n".join(json.dumps(v, separators=(",", ":")) for v in value)
    (folder / name).write_text(f"[\n{lines}\n]\n")


# --- fnmatch -------------------------------------------------------------------------------------


def fnmatch_table(rng):
    globs = ["*.bias", "*", "", "?", "[", "[]", "[!]", "[]]", "[!]]", "[!a]*", "[a-c]", "[c-a]",
             "[!c-a]", "[a-]", "[-a]", "[!-a]", "[--a]", "[a--]", "[a-c-e]", "[a-cd-]", "[b-a!c]",
             "[b-a!-z]", "[b-a^c]", "[^a]", "[\\]", "\\*", "[a&&b]", "[a||b]", "[!b-ac]", "a[b",
             "**a**b", "decoder.layers.?.mlp.*", "*layernorm.[wb]*", "\u00e9?", "[\u00e0-\u00ff]*"]
    texts = ["", "a", "b", "c", "-", "!", "^", "]", "[", "\\", "*", "&", "ab", "a\nb", "B", "z",
             "aXbYb", "\u00e9\u00e8", "\u00ea", "x.bias", "bias", ".bias", "x.biases",
             "decoder.layers.3.mlp.linear_fc1.weight", "decoder.layers.13.mlp.x",
             "decoder.final_layernorm.bias"]
    for _ in range(300):
        globs.append("".join(rng.choice("ab-!^]][[*?c") for _ in range(rng.randint(1, 9))))
    rows = []
    for glob in globs:
        tried = texts + ["".join(rng.choice("ab-!^][c") for _ in range(rng.randint(0, 4)))
                         for _ in range(12)]
        rows.append([glob, tried, [t for t in tried if fnmatch.fnmatch(t, glob)]])
    return rows


# --- grouping ------------------------------------------------------------------------------------


def named_param(name, shape, allreduce=True, output=False, requires_grad=True):
    param = torch.nn.Parameter(torch.empty(shape), requires_grad=requires_grad)
    param.allreduce = allreduce
    param.is_embedding_or_output_parameter = output
    return name, param


def small_model():
    return [
        named_param("embedding.word_embeddings.weight", (8, 4), output=True),
        named_param("decoder.layers.0.self_attention.linear_qkv.weight", (12, 4)),
        named_param("decoder.layers.0.self_attention.linear_qkv.bias", (12,)),
        named_param("decoder.layers.0.self_attention.q_layernorm.weight", (4,)),
        named_param("decoder.layers.0.self_attention.k_layernorm.bias", (4,)),
        named_param("decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", (6, 4),
                    allreduce=False),
        named_param("decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.bias", (6,),
                    allreduce=False),
        named_param("decoder.layers.0.mlp.shared_experts.linear_fc1.weight", (6, 4)),
        named_param("decoder.layers.0.frozen.weight", (6, 4), requires_grad=False),
        named_param("decoder.layers.0.conv.weight", (2, 3, 4)),
        named_param("output_layer.weight", (8, 4), output=True),
    ]


def muon_overrides():
    """What the core 0.18-dev factory adds for Muon (0.16.1 has no overrides of the optimizer)."""
    rest = ParamPredicate(
        name="nonlinear_or_embedding",
        fn=lambda p: getattr(p, "is_embedding_or_output_parameter", False) or p.dim() != 2)
    return {ParamKey(predicate=rest): {"optimizer": "adam"}}


GROUPINGS = [  # config fields, further overrides as (ParamKey fields, override)
    ({"lr": 0.01}, []),
    ({"lr": 0.01, "min_lr": 0.001}, []),
    ({"lr": 0.01, "apply_wd_to_qk_layernorm": True}, []),
    ({"lr": 0.01, "min_lr": 0.001, "decoupled_lr": 0.5}, []),
    ({"lr": 0.01, "decoupled_lr": 0.5, "decoupled_min_lr": 0.25}, []),
    ({"lr": 0.01}, [({"name": ["*qkv*", "*conv*"]}, {"max_lr": 0.25, "wd_mult": 0.5})]),
    ({"lr": 0.01}, [({"name": ["*.weight"]}, {"start_wd": 0.125})]),
    ({"lr": 0.01}, [({"name": ["*.bias"]}, {"wd_mult": 0})]),
    ({"lr": 0.01}, [({"name": ["*.bias"]}, {"wd_mult": 1.0})]),
    ({"lr": 0.01}, [({"attr": ["is_embedding_or_output_parameter"]}, {"lr_mult": 2.0})]),
    ({"lr": 0.01}, [({"name": ["*qkv.bias"]}, {})]),
    ({"lr": 0.01}, [({"name": ["*conv*"]}, {})]),
    ({"lr": 0.01}, [({"name": ["*shared*"]}, {}), ({"name": ["*fc1*"]}, {"min_lr": 0.125})]),
    ({"lr": 0.01, "optimizer": "muon"}, []),
    ({"lr": 0.01, "optimizer": "muon", "decoupled_lr": 0.5}, []),
    ({"lr": 0.01, "optimizer": "muon"}, [({"name": ["*qkv.weight"]}, {"wd_mult": 0.5})]),
    ({"lr": 0.01, "optimizer": "muon"}, [({"name": ["*experts*"]}, {"max_lr": 0.5})]),
]


def group_answer(params, config, overrides):
    model = SimpleNamespace(named_parameters=lambda: params)
    keyed = get_standard_config_overrides(config)
    for key, override in overrides:
        keyed[ParamKey(**{k: tuple(v) for k, v in key.items()})] = override
    if config.optimizer == "muon":
        keyed.update(muon_overrides())
    try:
        groups = _get_param_groups([model], config, keyed)
    except ValueError as error:
        return {"error": str(error).split(":")[0]}
    names = {id(param): name for name, param in params}
    return {"groups": [{**{f: g[f] for f in GROUP_FIELDS if f in g},
                        "params": [names[id(p)] for p in g["params"]]} for g in groups]}


def groupings():
    rows = []
    for fields, overrides in GROUPINGS:
        params = small_model()
        rows.append({"config": fields, "overrides": overrides,
                     "params": [{"name": n, "shape": list(p.shape), "allreduce": p.allreduce,
                                 "output": p.is_embedding_or_output_parameter,
                                 "requires_grad": p.requires_grad} for n, p in params],
                     **group_answer(params, OptimizerConfig(**fields), overrides)})
    return rows


# --- real models: names, order, attributes, owners ---------------------------------------------

MODELS = {
    "gpt_5_layers": {"num_layers": 5},
    "gpt_12_layers_gqa": {"num_layers": 12, "num_query_groups": 2},
    "gpt_swiglu_rmsnorm": {"num_layers": 3, "gated_linear_unit": True, "normalization": "RMSNorm",
                           "add_bias_linear": False},
    "gpt_qk_layernorm_tied": {"num_layers": 2, "qk_layernorm": True, "tied": True},
    "gpt_experts": {"num_layers": 2, "num_moe_experts": 3, "moe_shared_expert_intermediate_size": 8,
                    "add_bias_linear": False},
}


def build_model(fields):
    fields = dict(fields)
    tied = fields.pop("tied", False)
    config = TransformerConfig(hidden_size=16, num_attention_heads=4, use_cpu_initialization=True,
                               persist_layer_norm=False, **fields)
    spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts,
                                    qk_layernorm=config.qk_layernorm,
                                    normalization=config.normalization)
    return GPTModel(config, spec, vocab_size=64, max_sequence_length=32,
                    share_embeddings_and_output_weights=tied)


def stub_group(size, rank):
    return SimpleNamespace(size=lambda: size, rank=lambda: rank)


def owners(groups, dp, expt_dp, rank, expt_rank):
    """The real shard_params on one rank: its groups afterwards and the two lists of all ranks."""
    local = [dict(g) for g in groups]
    stub = SimpleNamespace(pg_collection=SimpleNamespace(dp_cp=stub_group(dp, rank),
                                                         expt_dp=stub_group(expt_dp, expt_rank)))
    LayerWiseDistributedOptimizer.shard_params(stub, [SimpleNamespace(param_groups=local)])
    return [g["params"] for g in local], stub.dp_cp_params_list, stub.expt_dp_params_list


def model_rows():
    rows = []
    for name, fields in MODELS.items():
        model = build_model(fields)
        params = list(model.named_parameters())
        config = OptimizerConfig(lr=0.01, optimizer="muon")
        keyed = {**get_standard_config_overrides(config), **muon_overrides()}
        groups = _get_param_groups([model], config, keyed)
        names = {id(p): n for n, p in params}
        ranks = {}
        for dp in (2, 3, 7, 64):
            kept = [owners(groups, dp, dp, r, r)[0] for r in range(dp)]
            ranks[dp] = [[[names[id(p)] for p in group] for group in rank] for rank in kept]
        rows.append({"model": name,
                     "params": [[n, list(p.shape),
                                 {a: getattr(p, a) for a in ATTRIBUTES if hasattr(p, a)}]
                                for n, p in params],
                     "ranks": ranks})
    return rows


def deals(rng):
    rows = []
    for _ in range(60):
        sizes = [[rng.choice((1, 2, 3, 4, 8, 16, 48)) for _ in range(rng.randint(0, 9))]
                 for _ in range(rng.randint(1, 4))]
        experts = [rng.random() < 0.3 for _ in sizes]
        expert_parallel = rng.choice((1, 2, 3))
        dp = expert_parallel * rng.choice((1, 2, 5))
        groups, ids = [], {}
        for group, counts in enumerate(sizes):
            params = [torch.empty(c) for c in counts]
            for p in params:
                ids[id(p)] = len(ids)
            groups.append({"params": params, "is_expert_parallel": experts[group]})
        expt_dp = dp // expert_parallel
        kept, dense_list, expert_list = [], None, None
        for rank in range(dp):
            local, dense_list, expert_list = owners(groups, dp, expt_dp, rank, rank % expt_dp)
            kept.append([[ids[id(p)] for p in g] for g in local])
        as_ids = lambda lists: lists and [[ids[id(p)] for p in ps] for ps in lists]  # noqa: E731
        rows.append({"sizes": sizes, "experts": experts, "dp": dp,
                     "expert_parallel": expert_parallel, "kept": kept,
                     "dp_cp_params_list": as_ids(dense_list),
                     "expt_dp_params_list": as_ids(expert_list)})
    return rows


# --- optimizer state to sharded state -----------------------------------------------------------


def tensor_json(t):
    if isinstance(t, mapping.ShardedTensorFactory):
        return {"factory": t.key, "replica_id": t.replica_id,
                "shape": list(t.data.shape), "dtype": str(t.data.dtype)[6:]}
    return {"key": t.key, "dtype": str(t.dtype)[6:], "local_shape": t.local_shape,
            "global_shape": t.global_shape, "global_offset": t.global_offset,
            "axis_fragmentations": t.axis_fragmentations, "replica_id": t.replica_id,
            "prepend_axis_num": t.prepend_axis_num, "allow_shape_mismatch": t.allow_shape_mismatch}


def sharded_param(rng, key, data):
    if rng.random() < 0.2:
        return mapping.ShardedTensorFactory(key, data, lambda *a: {}, lambda d: data,
                                            replica_id=(0, rng.randint(0, 1), rng.randint(0, 1)))
    prepend = rng.randint(0, 1)
    axes = [(a, rng.randint(0, 1), 2) for a in range(data.dim() + prepend) if rng.random() < 0.5]
    return mapping.ShardedTensor.from_rank_offsets(
        key, data, *axes, prepend_axis_num=prepend, replica_id=(0, rng.randint(0, 1), 0),
        allow_shape_mismatch=rng.random() < 0.3)


def sharded_cases(rng):
    rows = []
    for _ in range(40):
        params = [torch.nn.Parameter(torch.empty([rng.choice((1, 2, 4)) for _ in range(
            rng.randint(0, 2))], dtype=torch.bfloat16)) for _ in range(rng.randint(1, 6))]
        sharded = [sharded_param(rng, f"layer{i}.weight", p) for i, p in enumerate(params)]
        # A nested dict with lists, objects that are no tensors, and an untracked tensor.
        model = {"a": {"x": sharded[0], "n": 3}, "b": [sharded[1:2], {"y": sharded[2:]}],
                 "untracked": sharded_param(rng, "other", torch.empty(2)), "text": "t"}
        order = list(range(len(params)))
        rng.shuffle(order)
        order = order[:rng.randint(0, len(order))]
        if order and rng.random() < 0.3:
            order.append(order[0])
        optim_params = [params[i] for i in order]
        id_map = state_mapping.get_param_id_to_sharded_param_map(model, optim_params)
        missing = bool(id_map) and rng.random() < 0.25
        if missing:
            del id_map[max(id_map)]
        state_ids = sorted(set(state_mapping.get_optim_param_to_id_map(optim_params).values()))
        state = {i: {k: torch.empty_like(optim_params[i], dtype=torch.float32)
                     for k in ("exp_avg", "exp_avg_sq", "step")} for i in state_ids}
        exclude = ("step",) if rng.random() < 0.5 else ()
        optim_state = {"state": state, "param_groups": [{"lr": 0.5, "params": state_ids}]}
        row = {"params": [{"shape": list(p.shape), "sharded": tensor_json(s)}
                          for p, s in zip(params, sharded)],
               "order": order, "missing": missing, "exclude": exclude, "state_ids": state_ids,
               "map": {i: tensor_json(t) for i, t in id_map.items()}}
        try:
            state_mapping.optim_state_to_sharding_state(optim_state, id_map, exclude)
            row["state"] = {i: {k: tensor_json(t) for k, t in s.items()}
                            for i, s in optim_state["state"].items()}
            assert optim_state["param_groups"][0]["params"].unwrap() == state_ids
        except ValueError:
            row["error"] = True
        rows.append(row)
    return rows


def grid_cases(rng):
    rows = []
    for _ in range(60):
        shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(0, 3))]
        prepend = rng.randint(0, 2)
        offsets = [(rng.randint(-1, len(shape) + prepend - 1), rng.randint(0, 3), rng.randint(1, 4))
                   for _ in range(rng.randint(0, 2))]
        row = {"shape": shape, "prepend": prepend, "rank_offsets": offsets}
        try:
            t = mapping.ShardedTensor.from_rank_offsets("k", torch.empty(shape), *offsets,
                                                        prepend_axis_num=prepend)
            row.update(tensor=tensor_json(t), chunk_offset=t.local_chunk_offset_in_global(),
                       max_chunks=t.max_allowed_chunks())
        except mapping.CheckpointingException:
            row["error"] = True
        rows.append(row)
    return rows


def object_cases():
    cases = [("rng_state", (1, 1), (0, 0)), ("common_state", (1,), (0,)),
             ("x._extra_state", (12,), (3,))]
    return [{"key": k, "shape": s, "offset": o,
             "unique_key": mapping.ShardedObject(k, None, s, o).unique_key} for k, s, o in cases]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    rng = random.Random(20261121)
    write(folder, "fnmatch.json", fnmatch_table(rng))
    write(folder, "groups.json", groupings())
    write(folder, "models.json", model_rows())
    write(folder, "deals.json", deals(rng))
    write(folder, "sharded_state.json", sharded_cases(rng))
    write(folder, "grids.json", grid_cases(rng))
    write(folder, "objects.json", object_cases())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

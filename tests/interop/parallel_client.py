"""Megatron-Core's own model and optimizer at parallel sizes: a client of checkpoints.

    parallel_client.py JOBS.json RESULTS.json

JOBS is a list of {"name", "folder", "set", "sizes"}: the checkpoint root `folder` is loaded at
`sizes` (tp, pp, vpp, cp, dp, ep, etp) into a model as `set` describes it, one Gloo process a rank.
`torch_dist` goes through dist_checkpointing.load with strict="raise_all", random-number states too;
`torch` through load_state_dict and load_state_dict_from_file, or load_parameter_state. The
optimizer is layer-wise or, where the set's command line says so, distributed. RESULTS maps each
name to what differs from the set's expected/state.safetensors. Devices and TransformerEngine are
replaced, for no forward pass is run; splits, names, groups, buffers and owners are Megatron's.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from golden.run import devices, te_modules  # noqa: E402

devices.replace_devices()
te_modules.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import (  # noqa: E402
    _get_param_groups,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer.layer_wise_optimizer import (  # noqa: E402
    LayerWiseDistributedOptimizer,
)
from megatron.core.optimizer.optimizer_config import (  # noqa: E402
    OptimizerConfig,
    ParamKey,
    ParamPredicate,
)
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from golden.optimizer import FusedAdam, Muon, make_state  # noqa: E402
from golden.run.launch import in_ranks  # noqa: E402
from golden.run.megatron_on_cpu import fit_optimizers  # noqa: E402
from golden.run.live_state import LiveState, differences, gathered  # noqa: E402

SIZES = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp")


def options_of(argv: list[str]) -> argparse.Namespace:
    """The options of a recorded command line that shape its model."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("num-layers", "hidden-size", "num-attention-heads", "ffn-hidden-size",
                 "vocab-size", "make-vocab-size-divisible-by", "num-query-groups", "num-experts",
                 "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-router-topk",
                 "max-position-embeddings", "ddp-bucket-size"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights",
                 "qk-layernorm", "moe-grouped-gemm", "moe-router-enable-expert-bias",
                 "moe-shared-expert-gate", "use-distributed-optimizer"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--normalization", default="LayerNorm")
    parser.add_argument("--position-embedding-type", default="learned_absolute")
    parser.add_argument("--transformer-impl", default="transformer_engine")
    parser.add_argument("--moe-router-score-function", default="softmax")
    return parser.parse_known_args(argv)[0]


def config_of(options: argparse.Namespace, sizes: dict) -> TransformerConfig:
    experts = {}
    if options.num_experts:
        experts = {
            name: getattr(options, name)
            for name in ("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
                         "moe_router_topk", "moe_grouped_gemm", "moe_router_enable_expert_bias",
                         "moe_router_score_function", "moe_shared_expert_gate")
        }
    gated = torch.nn.functional.silu if options.swiglu else torch.nn.functional.gelu
    return TransformerConfig(
        num_layers=options.num_layers, hidden_size=options.hidden_size,
        ffn_hidden_size=options.ffn_hidden_size, num_moe_experts=options.num_experts,
        num_attention_heads=options.num_attention_heads,
        num_query_groups=options.num_query_groups, add_bias_linear=not options.disable_bias_linear,
        gated_linear_unit=options.swiglu, activation_func=gated, bias_activation_fusion=False,
        normalization=options.normalization, qk_layernorm=options.qk_layernorm,
        bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=sizes["tp"], pipeline_model_parallel_size=sizes["pp"],
        virtual_pipeline_model_parallel_size=sizes["vpp"] if sizes["vpp"] > 1 else None,
        context_parallel_size=sizes["cp"], expert_model_parallel_size=sizes["ep"],
        expert_tensor_parallel_size=sizes["etp"],
        sequence_parallel=sizes["tp"] > 1 and sizes["ep"] > 1, **experts,
    )


def chunk_of(options, config, stage: int) -> GPTModel:
    engine = options.transformer_impl == "transformer_engine"
    virtual = stage if config.virtual_pipeline_model_parallel_size else None
    divisor = options.make_vocab_size_divisible_by * config.tensor_model_parallel_size
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual)
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_decoder_block_spec(
            config, engine, normalization=options.normalization, vp_stage=virtual),
        vocab_size=-(-options.vocab_size // divisor) * divisor,
        max_sequence_length=options.max_position_embeddings,
        pre_process=first, post_process=last, vp_stage=virtual,
        position_embedding_type=options.position_embedding_type,
        share_embeddings_and_output_weights=not options.untie_embeddings_and_output_weights,
    ).bfloat16()


def in_flat_buffers(model: list[GPTModel], options: argparse.Namespace) -> list:
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, bucket_size=options.ddp_bucket_size,
        overlap_grad_reduce=options.ddp_bucket_size is not None, grad_reduce_in_fp32=True)
    return [DistributedDataParallel(chunk.config, config, chunk, disable_bucketing=i > 0)
            for i, chunk in enumerate(model)]


def distributed_optimizer_of(model: list[DistributedDataParallel]):
    return get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, min_lr=0.001, weight_decay=0.1, bf16=True,
                        adam_beta2=0.95, use_distributed_optimizer=True), model)


def layer_wise_optimizer_of(model: list[GPTModel]) -> LayerWiseDistributedOptimizer:
    """Muon for matrices, Adam for the rest, in the groups that Megatron makes, with zero state."""
    config = OptimizerConfig(optimizer="adam", lr=0.01, min_lr=0.001, weight_decay=0.1, bf16=True)
    rest = ParamPredicate(
        name="nonlinear_or_embedding",
        fn=lambda p: getattr(p, "is_embedding_or_output_parameter", False) or p.dim() != 2)
    overrides = get_standard_config_overrides(config)
    overrides[ParamKey(predicate=rest)] = {"optimizer": "adam"}
    groups = _get_param_groups(model, config, overrides)
    inner = [Muon([g for g in groups if "optimizer" not in g]),
             FusedAdam([g for g in groups if "optimizer" in g])]
    collection = ProcessGroupCollection.use_mpu_process_groups(["dp_cp", "expt_dp"])
    return LayerWiseDistributedOptimizer(
        inner, config, collection, init_state_fn_list=[make_state] * len(inner))


def keyed(model: list) -> dict:
    return {"model" if len(model) == 1 else f"model{i}": chunk for i, chunk in enumerate(model)}


def load_torch_dist(folder: Path, model, optimizer) -> None:
    content = dist_checkpointing.load_content_metadata(str(folder))
    requests = {key: chunk.sharded_state_dict(metadata=content)
                for key, chunk in keyed(model).items()}
    requests["optimizer"] = optimizer.sharded_state_dict(
        dict(requests), is_loading=True, metadata=content)
    grid = (parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_tensor_model_parallel_world_size())
    place = (parallel_state.get_pipeline_model_parallel_rank(),
             parallel_state.get_tensor_model_parallel_rank())
    requests["rng_state"] = ShardedObject(
        "rng_state", None, grid, place,
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True))
    state = dist_checkpointing.load(requests, str(folder), strict="raise_all")
    for key, chunk in keyed(model).items():
        chunk.load_state_dict(state[key], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    assert len(state["rng_state"]) == 1


def rank_folder(folder: Path) -> Path:
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if parallel_state.get_expert_model_parallel_world_size() > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return folder / name


def load_torch(folder: Path, model, optimizer) -> None:
    own = rank_folder(folder)
    state = torch.load(own / "model_optim_rng.pt", weights_only=False)
    for key, chunk in keyed(model).items():
        chunk.load_state_dict(state[key], strict=True)
    if isinstance(optimizer, LayerWiseDistributedOptimizer):
        rank = parallel_state.get_data_parallel_rank()
        optimizer.load_state_dict_from_file(str(own / f"layer_wise_optimizer_{rank}.pt"))
    else:
        optimizer.load_state_dict(state["optimizer"])
        optimizer.load_parameter_state(str(own / "distrib_optim.pt"))
    assert state["rng_state"]


def check(job: dict, results: Path, _rank: int) -> None:
    """One rank of one job; rank 0 writes what differs."""
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    sizes = job["sizes"]
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        sizes["tp"], sizes["pp"], sizes["vpp"] if sizes["vpp"] > 1 else None,
        context_parallel_size=sizes["cp"], expert_model_parallel_size=sizes["ep"],
        expert_tensor_parallel_size=sizes["etp"])
    model_parallel_cuda_manual_seed(1)
    described = Path(job["set"])
    options = options_of(json.loads((described / "expected/run.json").read_text())["argv"])
    config = config_of(options, sizes)
    model = [chunk_of(options, config, stage) for stage in range(sizes["vpp"])]
    if options.use_distributed_optimizer:
        fit_optimizers()
        optimizer = distributed_optimizer_of(in_flat_buffers(model, options))
    else:
        optimizer = layer_wise_optimizer_of(model)
    root = Path(job["folder"])
    iteration = int((root / "latest_checkpointed_iteration.txt").read_text())
    folder = root / f"iter_{iteration:07d}"
    (load_torch_dist if (folder / "metadata.json").exists() else load_torch)(
        folder, model, optimizer)
    state, problems = gathered(LiveState(model, optimizer, options, parallel_state).pieces)
    if dist.get_rank() == 0:
        expected = load_file(described / "expected/state.safetensors")
        results.write_text(json.dumps(problems + differences(expected, state)))
    dist.barrier()


def sizes_of(given: dict) -> dict:
    sizes = {name: given.get(name) or 1 for name in SIZES}
    sizes["etp"] = given.get("etp") or sizes["tp"]
    return sizes


def run(job: dict, scratch: Path) -> list[str]:
    job["sizes"] = sizes_of(job["sizes"])
    world = job["sizes"]["tp"] * job["sizes"]["pp"] * job["sizes"]["cp"] * job["sizes"]["dp"]
    outcome, logs = scratch / "outcome.json", scratch / "logs"
    outcome.unlink(missing_ok=True)
    failed = in_ranks(world, partial(check, job, outcome), logs, timeout_s=120)
    if failed:
        last = (logs / f"rank{failed[0]}.log").read_text(errors="replace").splitlines()[-3:]
        return [f"rank {failed[0]} failed: {' '.join(last)}"]
    return json.loads(outcome.read_text())


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory(prefix="parallel_client") as scratch:
        outcome = {job["name"]: run(job, Path(scratch)) for job in jobs}
    Path(sys.argv[2]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()

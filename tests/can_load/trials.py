"""The pairs of checkpoint and flags that run_pairs.py runs, by tree."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from read_reference import NO_BUCKETS, flags_to, sizes_of

SOURCE_TREES = ("april", "august")
RELEASES = ("core_0.15.3", "core_0.16.1", "core_0.17.1", "core_0.18.2", "core_0.19.0")
EVERYWHERE = SOURCE_TREES + RELEASES


@dataclass(frozen=True)
class Trial:
    tree: str
    set: str
    flags: dict = field(default_factory=dict)
    files: tuple[str, ...] = ()


NO_OPTIM, NO_RNG, FINETUNE = {"no_load_optim": True}, {"no_load_rng": True}, {"finetune": True}
AUTO = {"auto_detect_ckpt_format": True}
FP16 = {"bf16": False, "fp16": True, "initial_loss_scale": 65536}
BUCKETS = {"ddp_bucket_size": 4096}
USE, OVERRIDE = ({"use_checkpoint_opt_param_scheduler": True},
                 {"override_opt_param_scheduler": True})
FROM_ARGS = {"use_checkpoint_args": True}
SIZES_FROM_ARGS = FROM_ARGS | {"use_mp_args_from_checkpoint_args": True}
MUON = {"optimizer": "dist_muon", "adam_beta2": None, "use_distributed_optimizer": False,
        **NO_BUCKETS}
LENIENT = ("assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
           "ignore_all")
ADAM = "par_do_adam_torch_{0} par_do_adam_dp_reshardable_{0} par_do_adam_fully_reshardable_{0}"

# Of every release: sizes, buckets and containers of ZeRO-1 sets.
SIZES = {
    ADAM.format("dp4"): ["dp2", "dp1", "tp2dp2", "pp2dp2", "cp2dp2", BUCKETS, NO_BUCKETS],
    ADAM.format("tp2dp2"): ["tp2", "dp2", "pp2", NO_OPTIM, FINETUNE],
    ADAM.format("pp2dp2"): ["pp2", "dp1", "tp2", "pp2vpp2dp2"],
    ADAM.format("pp2vpp2dp2"): ["pp2dp2", "dp1"],
    ADAM.format("cp2dp2"): ["dp4", "dp1"],
    "par_do_adam_torch_dp2 par_do_adam_dp_reshardable_dp2 par_do_adam_fully_reshardable_dp2": [
        {"ckpt_format": "torch"}, {"ckpt_format": "torch_dist"},
        {"ckpt_format": "torch"} | AUTO, {"ckpt_format": "torch_dist"} | AUTO],
    "par_v012_do_adam_fully_sharded_dp2 par_v014_do_adam_fully_sharded_dp2": ["dp1", NO_OPTIM],
    "par_v012_do_adam_fully_sharded_tp2dp2 par_v014_do_adam_fully_sharded_tp2dp2": ["tp2", "dp2"],
    "par_v012_do_adam_fully_sharded_pp2dp2 par_v014_do_adam_fully_sharded_pp2dp2": ["dp1"],
    "par_v012_do_adam_dp_zero_dp2": ["dp1", NO_OPTIM],
    "par_v012_do_adam_dp_zero_tp2dp2": ["tp2", "dp2"],
    "par_v012_do_adam_torch_dp2": ["dp1", NO_OPTIM],
    "par_v012_do_adam_torch_tp2dp2": ["tp2", "dp2"],
    "par_v014_do_adam_moef_fully_sharded_ep2dp2": ["ep4"],
    "par_do_adam_moe_torch_ep2dp2 par_do_adam_moe_dp_reshardable_ep2dp2 "
    "par_do_adam_moe_fully_reshardable_ep2dp2": ["dp4", "ep4", "ep2pp2dp2"],
    "par_do_adam_moe_fully_reshardable_dp1": ["ep2dp2"],
    "par_do_adam_tied_torch_pp2dp2 par_do_adam_tied_dp_reshardable_pp2dp2 "
    "par_do_adam_tied_fully_reshardable_pp2dp2": ["dp1"],
    "par_do_adam_vpad_torch_tp2dp2 par_do_adam_vpad_fully_reshardable_tp2dp2": ["tp2", "dp1"],
    "par_do_adam_vpad_fully_reshardable_dp1": ["tp2dp2"],
    "par_do_adam_fully_reshardable_fault5077_dp4": ["dp2"],
    "par_adam_fp16_torch_dp2 par_adam_fp16_torch_dist_dp2 par_do_adam_fp16_torch_dp2 "
    "par_do_adam_fp16_dp_reshardable_dp2 par_do_adam_fp16_fully_reshardable_dp2": ["dp1", "tp2"],
    "par_head_do_adam_dp_reshardable_tp2dp2 par_head_do_adam_fully_reshardable_tp2dp2": [
        "tp2", "dp2"],
    "par_do_adam_llama_torch_tp2dp2 par_do_adam_llama_dp_reshardable_tp2dp2 "
    "par_do_adam_llama_fully_reshardable_tp2dp2": ["dp2"],
}
# Muon's, where the release has it.
MUON_SIZES = {
    "par_lw_muon_torch_tp2dp2 par_lw_muon_torch_dist_tp2dp2": [
        "tp2", "dp1", {"no_use_layer_wise_param_layout": True}],
    "par_head_lw_muon_torch_dist_tp2dp2 par_head_lw_muon_fully_reshardable_tp2dp2": ["tp2", "dp1"],
    "par_lw_muon_moe_torch_dist_ep2dp2": ["ep4", "dp4"],
}
# Flags that are no sizes, on one set of each form.
MODEL = [
    {"num_layers": 2}, {"num_layers": 6}, {"hidden_size": 64}, {"hidden_size": 16},
    {"num_attention_heads": 2}, {"num_attention_heads": 8, "kv_channels": 8},
    {"num_query_groups": 1}, {"num_query_groups": 4}, {"ffn_hidden_size": 64},
    {"ffn_hidden_size": 128}, {"vocab_size": 90}, {"vocab_size": 200},
    {"make_vocab_size_divisible_by": 64}, {"make_vocab_size_divisible_by": 8},
    {"swiglu": True}, {"untie_embeddings_and_output_weights": False},
    {"normalization": "RMSNorm"}, {"disable_bias_linear": True}, {"add_qkv_bias": True},
    {"position_embedding_type": "rope", "no_rope_fusion": True},
    {"position_embedding_type": "none"}, {"no_position_embedding": True},
    {"max_position_embeddings": 64}, {"max_position_embeddings": 16, "seq_length": 16},
    {"seq_length": 16}, {"qk_layernorm": True}, {"kv_channels": 16},
    {"num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 40},
    {"squared_relu": True}, {"apply_layernorm_1p": True}, {"norm_epsilon": 0.01},
    {"attention_dropout": 0.0}, {"hidden_dropout": 0.0}, {"seed": 4321}, {"init_method_std": 0.5},
    {"mtp_num_layers": 1}, {"multi_latent_attention": True},
]
START = [
    NO_OPTIM, NO_RNG, NO_OPTIM | NO_RNG, FINETUNE, FINETUNE | NO_OPTIM,
    *({"dist_ckpt_strictness": word} for word in LENIENT),
    {"ckpt_step": 3}, {"ckpt_step": 1}, {"load": "/nowhere"}, {"exit_on_missing_checkpoint": True},
    {"load": "/nowhere", "exit_on_missing_checkpoint": True}, {"load": None},
    {"data_parallel_random_init": True}, FROM_ARGS, SIZES_FROM_ARGS,
    FROM_ARGS | {"num_layers": None, "hidden_size": None, "num_attention_heads": None,
                 "ffn_hidden_size": None, "seq_length": None, "max_position_embeddings": None},
    FROM_ARGS | {"num_layers": 2}, SIZES_FROM_ARGS | {"tensor_model_parallel_size": 2},
    {"overlap_param_gather": True}, {"ckpt_fully_parallel_load": True},
    {"no_ckpt_fully_parallel_save": True}, {"ckpt_assume_constant_structure": True},
    {"dist_ckpt_optim_fully_reshardable": True}, {"dist_ckpt_optim_fully_reshardable": False},
    {"rerun_mode": "disabled"}, {"use_dist_ckpt": True}, {"load_main_params_from_ckpt": True},
    NO_OPTIM | {"load_main_params_from_ckpt": True}, {"micro_batch_size": 2},
    {"pretrained_checkpoint": "/nowhere"}, {"load": "/nowhere", "pretrained_checkpoint": "/none"},
]
OPTIMIZER = [
    {"use_distributed_optimizer": False, **NO_BUCKETS}, {"optimizer": "sgd"},
    {"optimizer": "sgd", "use_distributed_optimizer": False, **NO_BUCKETS}, MUON,
    {"adam_beta1": 0.8}, {"adam_beta2": 0.999}, {"adam_eps": 1e-6}, {"weight_decay": 0.2},
    {"clip_grad": 0.001}, {"decoupled_lr": 0.02}, {"accumulate_allreduce_grads_in_fp32": True},
    FP16, {"bf16": False}, {"use_precision_aware_optimizer": True},
    {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16"},
    {"main_params_dtype": "fp16", "use_precision_aware_optimizer": True},
    {"num_distributed_optimizer_instances": 2}, {"ddp_pad_buckets_for_high_nccl_busbw": True},
    {"ddp_num_buckets": 2, "ddp_bucket_size": None}, {"optimizer_cpu_offload": True},
    {"apply_wd_to_qk_layernorm": True}, {"weight_decay_incr_style": "linear",
                                         "start_weight_decay": 0.1, "end_weight_decay": 0.2},
]
SCHEDULE = [
    {"lr": 0.02}, {"lr": 0.02} | USE, {"lr": 0.02} | OVERRIDE, {"min_lr": 0.0001},
    {"lr_decay_style": "linear"}, {"lr_decay_style": "linear"} | OVERRIDE,
    {"train_iters": 20}, {"train_iters": 20} | USE, {"train_iters": 20} | OVERRIDE,
    {"lr_decay_iters": 20}, {"lr_decay_iters": 20} | OVERRIDE, {"lr_warmup_iters": 2},
    {"lr_warmup_iters": 2} | OVERRIDE, {"lr_warmup_fraction": 0.2}, {"lr_warmup_init": 0.001},
    {"global_batch_size": 16}, {"global_batch_size": 16} | USE,
    {"global_batch_size": 16} | OVERRIDE, USE, OVERRIDE, USE | OVERRIDE,
    {"train_iters": None, "train_samples": 80}, {"train_iters": 2}, {"train_iters": 3},
    {"override_opt_param_scheduler": True, "weight_decay": 0.2},
    {"rampup_batch_size": [4, 4, 16]},
]
TRACKER = "latest_checkpointed_iteration.txt"
ITERATION = "iter_0000003"
DAMAGE = [
    [f"remove {TRACKER}"], [f"write {TRACKER} 7"], [f"write {TRACKER} three"],
    [f"write {TRACKER} "], [f"write {TRACKER} -1"], [f"write {TRACKER} 0"],
    [f"write {TRACKER} release"], [f"rename {ITERATION} release", f"write {TRACKER} release"],
    [f"rename {ITERATION} iter_0000009", f"write {TRACKER} 9"], [f"remove {ITERATION}"],
]
TORCH_DAMAGE = [
    [f"{verb} {ITERATION}/mp_rank_00/{name}{more}"]
    for name in ("model_optim_rng.pt", "distrib_optim.pt")
    for verb, more in (("remove", ""), ("cut", " 50"), ("cut", " 0"), ("flip", " 30"),
                       ("flip", " 60"))
]
DIST_DAMAGE = [
    [f"{verb} {ITERATION}/{name}{more}"]
    for name in ("common.pt", ".metadata", "metadata.json", "__0_0.distcp", "__1_0.distcp")
    for verb, more in (("remove", ""), ("cut", " 50"), ("cut", " 0"), ("flip", " 40"),
                       ("flip", " 70"))
]
# What releases themselves wrote (make_sets.py), for all trees.
OF_RELEASES = {
    "par_v015_do_adam_torch_dp2 par_v015_do_adam_dp_reshardable_dp2 "
    "par_v015_do_adam_fully_reshardable_dp2 par_v015_do_adam_fully_reshardable_one_bucket_dp2": [
        "dp1", "tp2", NO_OPTIM, NO_BUCKETS],
    "par_v015_do_adam_fully_reshardable_one_bucket_tp2dp2 par_v015_do_adam_torch_tp2dp2 "
    "par_v015_do_adam_dp_reshardable_tp2dp2": ["tp2", "dp2"],
    "par_v015_do_adam_moe_dp_reshardable_ep2dp2 par_v016_do_adam_moe_dp_reshardable_ep2dp2 "
    "par_v016_do_adam_moe_fully_reshardable_one_bucket_ep2dp2 "
    "par_v019_do_adam_moe_dp_reshardable_ep2dp2": [NO_RNG, "ep4"],
    "par_v016_do_adam_torch_dp2 par_v018_do_adam_torch_dp2 par_v019_do_adam_torch_dp2 "
    "par_v016_do_adam_dp_reshardable_dp2 par_v017_do_adam_dp_reshardable_dp2 "
    "par_v018_do_adam_dp_reshardable_dp2 par_v019_do_adam_dp_reshardable_dp2 "
    "par_v016_do_adam_fully_reshardable_dp2 par_v019_do_adam_fully_reshardable_dp2": ["dp1"],
    "par_v016_do_adam_fully_reshardable_one_bucket_tp2dp2 "
    "par_v017_do_adam_fully_reshardable_one_bucket_tp2dp2 "
    "par_v018_do_adam_fully_reshardable_one_bucket_tp2dp2 "
    "par_v019_do_adam_fully_reshardable_one_bucket_tp2dp2 par_v019_do_adam_torch_tp2dp2": [
        "dp2", NO_OPTIM],
    "par_v018_lw_muon_torch_dist_tp2dp2 par_v019_lw_muon_torch_dist_tp2dp2": ["tp2", "dp2"],
}
ONE_EACH = "par_do_adam_torch_dp2 par_do_adam_dp_reshardable_dp2 par_do_adam_fully_reshardable_dp2"
MUON_EACH = "par_lw_muon_torch_dp4 par_lw_muon_torch_dist_dp4"
SHORT = [NO_OPTIM, NO_RNG, FINETUNE, {"num_layers": 2}, {"num_layers": 6}, {"hidden_size": 64},
         {"vocab_size": 200}, {"swiglu": True}, {"normalization": "RMSNorm"}, {"lr": 0.02},
         {"global_batch_size": 16}, {"train_iters": 20}, {"weight_decay": 0.2},
         {"use_distributed_optimizer": False, **NO_BUCKETS}, FP16]
MUON_FLAGS = [
    {"muon_tp_mode": "blockwise"}, {"muon_tp_mode": "distributed"}, {"muon_momentum": 0.8},
    {"muon_num_ns_steps": 3}, {"muon_use_nesterov": True}, {"muon_scale_mode": "unit_rms_norm"},
    {"muon_extra_scale_factor": 0.5}, {"muon_split_qkv": False, "muon_no_split_qkv": True},
    {"optimizer": "adam", "muon_momentum": None, "muon_tp_mode": None},
    {"optimizer": "adam", "muon_momentum": None, "muon_tp_mode": None,
     "use_distributed_optimizer": True}, {"optimizer": "muon"},
]
CROSS = {  # sizes and other flags at once
    ADAM.format("tp2dp2"): [("dp2", NO_OPTIM), ("dp2", FINETUNE), ("pp2", FINETUNE),
                            ("tp2", NO_RNG), ("dp2", SIZES_FROM_ARGS)],
    ADAM.format("pp2dp2"): [("dp2", NO_OPTIM), ("dp2", FINETUNE), ("pp2vpp2dp2", FINETUNE),
                            ("pp2vpp2dp2", NO_OPTIM), ("tp2", FINETUNE)],
    ADAM.format("dp4"): [("tp2dp2", NO_OPTIM), ("tp2dp2", FINETUNE), ("pp2dp2", NO_OPTIM),
                         ("dp2", {"global_batch_size": 16}), ("dp2", {"lr": 0.02})],
    "par_lw_muon_torch_tp2dp2 par_lw_muon_torch_dist_tp2dp2": [
        ("dp2", NO_OPTIM), ("dp2", FINETUNE), ("tp2", NO_OPTIM), ("tp2", FINETUNE)],
    "par_lw_muon_torch_pp2dp2 par_lw_muon_torch_dist_pp2dp2": [
        ("pp2vpp2dp2", NO_OPTIM), ("pp2vpp2dp2", FINETUNE), ("dp2", FINETUNE)],
    "par_lw_muon_blockwise_torch_dist_tp2dp2": [("tp2", {}), ("dp2", {}), ("dp1", {})],
    "par_lw_muon_llama_torch_dist_tp2dp2": [("tp2", {}), ("dp2", {})],
    "par_lw_muon_vpad_torch_dist_tp2dp2": [("dp1", {}), ("tp2", {})],
    "par_do_adam_moe_fully_reshardable_ep2dp2 par_do_adam_moe_dp_reshardable_ep2dp2 "
    "par_lw_muon_moe_torch_dist_ep2dp2 par_do_adam_moe_torch_ep2dp2": [
        ("dp4", NO_OPTIM), ("dp1", FINETUNE), ("ep4", NO_OPTIM)],
}
# A model with other keys than the checkpoint, loaded strictly and not.
STRICT = [{"dist_ckpt_strictness": word} | model for word in (*LENIENT, "return_all")
          for model in ({"qk_layernorm": True}, {"disable_bias_linear": True},
                        {"position_embedding_type": "none"}, {"hidden_size": 64})]
STRICT += [one | NO_OPTIM for one in STRICT if "hidden_size" not in one]
EXPERTS = [{"num_experts": 8}, {"num_experts": 2}, {"moe_ffn_hidden_size": 48},
           {"moe_router_topk": 1}, {"moe_layer_freq": 2}, {"num_experts": None,
            "moe_router_topk": None, "moe_ffn_hidden_size": None, "expert_model_parallel_size": 1,
            "moe_token_dispatcher_type": None},
           {"moe_shared_expert_intermediate_size": 48}]


def _each(tree: str, sets: str, flags: list, files: list = ()) -> list[Trial]:
    found = []
    for name in sets.split():
        own = sizes_of(name.split("_")[-1])
        found.append(Trial(tree, name))
        for one in flags:
            layout, more = one if isinstance(one, tuple) else (one, {})
            if isinstance(layout, str):
                layout = flags_to(layout, own)
            found.append(Trial(tree, name, layout | more))
        found += [Trial(tree, name, {}, tuple(changes)) for changes in files]
    return found


def of_source(tree: str) -> list[Trial]:
    """What ran before, again."""
    rows = Path(__file__).with_name("pairs.jsonl").read_text().splitlines()
    found = []
    for row in map(json.loads, rows):
        if row["tree"] == tree and row["from"] != "run":
            found += [Trial(tree, row["set"]), Trial(tree, row["set"], row["flags"])]
    return found


def trials_of(tree: str) -> list[Trial]:
    """Each set first with its own flags."""
    found = of_source(tree)
    if tree in EVERYWHERE:
        for sets, flags in SIZES.items():
            found += _each(tree, sets, flags)
        if tree == "core_0.15.3":  # refuses what newer ones wrote, whatever the flags
            found = [t for t in found if "_v01" in t.set or not t.flags]
        else:
            found += _each(tree, ONE_EACH, SHORT)
        old = "par_v014_do_adam_fully_sharded_dp2" if tree == "core_0.15.3" else ""
        found += _each(tree, old or "par_do_adam_fully_reshardable_dp2", SCHEDULE)
        found += _each(tree, "par_adam_fp16_torch_dp2 par_adam_fp16_torch_dist_dp2", SCHEDULE[:4])
        if old:
            found += _each(tree, old, SHORT + START[:8])
        else:
            for sets, flags in MUON_SIZES.items():
                found += _each(tree, sets, flags)
        for sets, flags in OF_RELEASES.items():
            found += _each(tree, sets, flags)
    if tree in SOURCE_TREES:
        found += _each(tree, ONE_EACH, START + OPTIMIZER + SCHEDULE + MODEL, DAMAGE)
        found += _each(tree, "par_do_adam_torch_dp2", [], TORCH_DAMAGE)
        found += _each(tree, "par_do_adam_fully_reshardable_dp2 par_do_adam_dp_reshardable_dp2",
                       [], DIST_DAMAGE)
        found += _each(tree, MUON_EACH, MUON_FLAGS + SHORT)
        found += _each(tree, "par_do_adam_moe_fully_reshardable_dp1 par_do_adam_moe_torch_dp1",
                       EXPERTS)
        for sets, flags in CROSS.items():
            found += _each(tree, sets, flags)
        found += _each(tree, "par_do_adam_fully_reshardable_dp2", STRICT)
    seen, once = set(), []
    for trial in found:
        key = json.dumps([trial.set, trial.flags, trial.files])
        if key not in seen:
            seen.add(key)
            once.append(trial)
    return once

"""Checkpoints that Megatron wrote of a DistributedOptimizer (ZeRO-1): fully_reshardable of April
and core 0.20-dev, fully_sharded_model_space of 0.12 and 0.14, whose state has the names of
parameters; dp_reshardable, distrib_optim.pt and dp_zero_gather_scatter of 0.12, where it lies in
flat buffers.
"""

from __future__ import annotations

from parallel_sets import IS_LONG

GPT = ("dp1", "dp2", "dp3", "dp4", "cp2dp2", "tp2dp2", "pp2dp2", "pp2vpp2dp2", "tp2pp2dp2",
       "dp4_to_dp2", "dp4_to_tp2dp2", "dp4_to_pp2dp2")
EXPERTS = ("dp1", "ep2dp2", "ep2pp2dp2", "ep2tp2dp2")
LAYOUTS = {
    "par_do_adam_fully_reshardable": GPT,
    "par_do_adam_fully_reshardable_mem_efficient": ("dp4", "tp2dp2"),
    "par_do_adam_llama_fully_reshardable": ("dp1", "tp2", "tp2dp2"),
    "par_do_adam_tied_fully_reshardable": ("dp1", "pp2dp2", "pp2vpp2dp2"),
    "par_do_adam_moe_fully_reshardable": EXPERTS,
    "par_do_adam_moef_fully_reshardable": EXPERTS,
    "par_do_adam_fp16_fully_reshardable": ("dp2", "tp2dp2"),
    "par_do_adam_vpad_fully_reshardable": ("dp1", "tp2dp2", "dp1_to_tp2dp2", "tp2dp2_to_dp1"),
    "par_head_do_adam_fully_reshardable": ("dp1", "tp2dp2", "pp2dp2", "tp2pp2dp2"),
    "par_head_lw_muon_fully_reshardable": ("dp1", "tp2dp2", "pp2dp2", "tp2pp2dp2"),
    "par_v012_do_adam_fully_sharded": ("dp1", "dp2", "dp4", "tp2dp2", "pp2dp2", "tp2pp2dp2"),
    "par_v012_do_adam_llama_fully_sharded": ("dp2", "tp2dp2"),
    "par_v012_do_adam_moe_fully_sharded": ("ep2dp2",),
    "par_v012_do_adam_tied_fully_sharded": ("pp2dp2",),
    "par_v012_do_adam_dp_zero": ("dp2", "tp2dp2"),
    "par_v014_do_adam_fully_sharded": ("dp2", "tp2dp2", "pp2dp2"),
    "par_v014_do_adam_llama_fully_sharded": ("tp2dp2",),
    "par_v014_do_adam_moef_fully_sharded": ("ep2dp2",),
    "par_do_adam_torch": (*GPT[:9], "bucket7000_dp1"),
    "par_do_adam_llama_torch": ("dp1", "tp2", "tp2dp2"),
    "par_do_adam_tied_torch": ("dp1", "pp2dp2", "pp2vpp2dp2"),
    "par_do_adam_moe_torch": EXPERTS,
    "par_do_adam_moef_torch": EXPERTS,
    "par_do_adam_fp16_torch": ("dp2", "tp2dp2"),
    "par_do_adam_vpad_torch": ("dp1", "tp2dp2"),
    "par_v012_do_adam_torch": ("dp2", "tp2dp2"),
    "par_do_adam_dp_reshardable": (*GPT[:9], "dp4_to_dp2"),
    "par_do_adam_llama_dp_reshardable": ("dp1", "tp2", "tp2dp2"),
    "par_do_adam_tied_dp_reshardable": ("dp1", "pp2dp2", "pp2vpp2dp2"),
    "par_do_adam_moe_dp_reshardable": EXPERTS,
    "par_do_adam_fp16_dp_reshardable": ("dp2", "tp2dp2"),
    "par_head_do_adam_dp_reshardable": ("dp1", "tp2dp2", "pp2dp2", "tp2pp2dp2"),
    "par_head_lw_muon_torch_dist": ("dp1", "tp2dp2", "pp2dp2", "tp2pp2dp2"),
    "par_head_lw_muon_buckets_torch_dist": ("dp4", "tp2dp2", "pp2dp2"),
}
ALL = tuple(f"{prefix}_{layout}" for prefix, layouts in LAYOUTS.items() for layout in layouts)
# Each form, era, family and axis at least once.
SAMPLE = (
    "par_do_adam_fully_reshardable_dp3",
    "par_do_adam_fully_reshardable_cp2dp2",
    "par_do_adam_fully_reshardable_tp2pp2dp2",
    "par_do_adam_fully_reshardable_pp2vpp2dp2",
    "par_do_adam_fully_reshardable_mem_efficient_dp4",
    "par_do_adam_llama_fully_reshardable_tp2dp2",
    "par_do_adam_tied_fully_reshardable_pp2vpp2dp2",
    "par_do_adam_moe_fully_reshardable_ep2tp2dp2",
    "par_do_adam_moef_fully_reshardable_ep2pp2dp2",
    "par_do_adam_fp16_fully_reshardable_tp2dp2",
    "par_do_adam_vpad_fully_reshardable_dp1_to_tp2dp2",
    "par_head_do_adam_fully_reshardable_tp2pp2dp2",
    "par_head_lw_muon_fully_reshardable_tp2pp2dp2",
    "par_v012_do_adam_fully_sharded_tp2pp2dp2",
    "par_v012_do_adam_llama_fully_sharded_tp2dp2",
    "par_v012_do_adam_moe_fully_sharded_ep2dp2",
    "par_v012_do_adam_tied_fully_sharded_pp2dp2",
    "par_v012_do_adam_dp_zero_tp2dp2",
    "par_v014_do_adam_fully_sharded_dp2",
    "par_v014_do_adam_llama_fully_sharded_tp2dp2",
    "par_v014_do_adam_moef_fully_sharded_ep2dp2",
    "par_do_adam_torch_dp3",
    "par_do_adam_torch_bucket7000_dp1",
    "par_do_adam_torch_cp2dp2",
    "par_do_adam_torch_tp2pp2dp2",
    "par_do_adam_torch_pp2vpp2dp2",
    "par_do_adam_llama_torch_tp2dp2",
    "par_do_adam_tied_torch_pp2vpp2dp2",
    "par_do_adam_moe_torch_ep2tp2dp2",
    "par_do_adam_moef_torch_ep2pp2dp2",
    "par_do_adam_fp16_torch_tp2dp2",
    "par_v012_do_adam_torch_tp2dp2",
    "par_do_adam_dp_reshardable_dp3",
    "par_do_adam_dp_reshardable_cp2dp2",
    "par_do_adam_dp_reshardable_tp2pp2dp2",
    "par_do_adam_dp_reshardable_pp2vpp2dp2",
    "par_do_adam_llama_dp_reshardable_tp2dp2",
    "par_do_adam_tied_dp_reshardable_pp2vpp2dp2",
    "par_do_adam_moe_dp_reshardable_ep2tp2dp2",
    "par_do_adam_moe_dp_reshardable_ep2pp2dp2",
    "par_do_adam_fp16_dp_reshardable_tp2dp2",
    "par_head_do_adam_dp_reshardable_tp2pp2dp2",
    "par_head_lw_muon_torch_dist_tp2pp2dp2",
    "par_head_lw_muon_buckets_torch_dist_pp2dp2",
)
NAMES = ALL if IS_LONG else SAMPLE
# Saved by Megatron's faulty code (its issue 5077): displaced parameters, how many of their masters
# lie somewhere in the files, and how many nowhere.
FAULTS = {
    "par_do_adam_fully_reshardable_fault5077_dp4": (48, 39328, 960),
    "par_do_adam_fully_reshardable_fault5077_tp2dp2": (42, 33536, 1408),
    "par_do_adam_fully_reshardable_fault5077_pp2dp2": (22, 17632, 352),
}

ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" rng_state/shard_0.0_1.1

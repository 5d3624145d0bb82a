cd "$GOLDEN/lw_muon_bf16_torch_dist_dp2" && ckpt-inspect ckpt

ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" linear_fc1.bias

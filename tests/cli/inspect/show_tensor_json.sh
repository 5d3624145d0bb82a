ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" decoder.layers.mlp.linear_fc1.bias --json

ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" \
  common.pt:/optimizer/1/optimizer/param_groups --json

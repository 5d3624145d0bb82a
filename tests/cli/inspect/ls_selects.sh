ckpt-inspect ls "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --include "*linear_fc1*" --include "*rng*" \
  --exclude "optimizer.*"

ckpt-inspect ls "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --sort size --limit 5

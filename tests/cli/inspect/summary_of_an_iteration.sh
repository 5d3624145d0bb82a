cd "$GOLDEN" && ckpt-inspect lw_muon_bf16_torch_dp2/ckpt --iteration 3 | head -n 7

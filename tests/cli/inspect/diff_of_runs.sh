ckpt-inspect diff "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" "$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"

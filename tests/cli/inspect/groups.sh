ckpt-inspect groups "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"

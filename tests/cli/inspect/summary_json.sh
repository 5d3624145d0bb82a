ckpt-inspect --json "$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"

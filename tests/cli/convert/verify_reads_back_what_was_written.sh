ckpt-convert $GOLDEN/lw_muon_bf16_torch_dp2/ckpt out --to torch_dist --verify

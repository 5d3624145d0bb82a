ckpt-inspect verify "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
ckpt-inspect verify "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003" --quick

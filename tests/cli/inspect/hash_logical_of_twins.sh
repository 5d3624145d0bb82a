ckpt-inspect hash --logical --quiet "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
ckpt-inspect hash --logical --quiet "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"

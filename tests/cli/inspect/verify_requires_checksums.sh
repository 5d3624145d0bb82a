ckpt-inspect verify "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --require-checksums --quiet || echo $?
ckpt-inspect verify "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" --require-checksums --quiet

a="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
b="$GOLDEN/gpt1l_tiny_torch_dp2"
ckpt-inspect diff "$a" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --include 'decoder.*' --exclude '*.bias'
ckpt-inspect diff "$a" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --include '*nothing*' || echo $?
ckpt-inspect diff "$a" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --include 'decoder.*' --json | grep -E '"(compared|selection|schema_version)"'

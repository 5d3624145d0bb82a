A="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"; B="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect diff "$A" "$B"
ckpt-inspect diff "$A" "$B" --common || echo $?
ckpt-inspect diff "$A" "$B" --common --include common.groups
ckpt-inspect diff "$A" "$B" --include 'decoder.*'
ckpt-inspect diff "$A" "$B" --json | grep -A 30 '"common"'

A="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"; B="$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"
ckpt-inspect diff "$A" "$B" --top 2 || echo $?
ckpt-inspect diff "$A" "$B" --top 1 --summary || echo $?
ckpt-inspect diff "$A" "$B" --top 1 --json | grep '"key"'
ckpt-inspect diff "$A" "$B" --top 0 || echo $?
ckpt-inspect diff "$A" "$B" --top 3 --limit 2 || echo $?

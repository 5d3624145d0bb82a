two="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
four="$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"
ckpt-inspect diff "$two" "$four" --limit 2 || echo $?
ckpt-inspect diff "$two" "$four" --limit 0 || echo $?
ckpt-inspect diff "$two" "$four" --limit 1 --json || echo $?

two="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
four="$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"
ckpt-inspect diff "$two" "$four" --summary || echo $?
ckpt-inspect diff "$two" "$four" --summary --limit 1 --include '*momentum*' --json || echo $?
ckpt-inspect diff "$GOLDEN/torch_save_zip/zip.pt" "$GOLDEN/torch_save_zip/zip_nocrc.pt" --summary --limit 3 || echo $?
ckpt-inspect diff "$two" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --summary

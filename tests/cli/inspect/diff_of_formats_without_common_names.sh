ckpt-inspect diff "$GOLDEN/torch_save_zip/zip.pt" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" | tail -n 1
exit "${PIPESTATUS[0]}"

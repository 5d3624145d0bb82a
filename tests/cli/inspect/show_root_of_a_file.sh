ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" '(root)' | head -4
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" '(root)' | head -3

ckpt-inspect tree "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --sort size --depth 3
ckpt-inspect tree "$GOLDEN/torch_save_zip/zip.pt" --sort size --include '/user*'
ckpt-inspect tree "$GOLDEN/torch_save_zip/zip.pt" --sort size --include '/dtypes/*8*' --json | grep -E '"(name|bytes)"'

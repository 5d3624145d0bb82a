ckpt-inspect tree "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --depth 4 --exclude 'optimizer.state.exp*'
ckpt-inspect tree "$GOLDEN/torch_save_zip/zip.pt" --include '/user*'

# Before anything is written.
ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" out --to torch_dist >&-
echo "convert: $?"
reshard "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" out --dp 4 -q >&-
echo "reshard: $?"
ls -A

from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
cp -r "$from" root && rm -r root/iter_0000003
ckpt-convert "$from" --into root --to torch_dist --rank 0 --world-size 2 | head -1 | cut -d: -f1
ls -A root
ckpt-convert "$from" --into root --to torch_dist --clean
ls -A root
ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" --into root --to torch_dist --clean
echo "exit $?"

# A folder is not called x.pt, a torch.save file not x.safetensors: all destinations and formats.
megatron="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
plain="$GOLDEN/torch_save_zip/zip.pt"
refused() { echo "# $*" | sed "s|$GOLDEN|GOLDEN|"; "$@" --quiet 2>&1; echo "exit $?"; }
for name in x.pt x.pth x.bin x.safetensors x.safetensors.index.json x.distcp; do
  refused ckpt-convert "$megatron" "$name" --to torch
done
refused ckpt-convert "$megatron" x.pt --to torch_dist
refused ckpt-convert "$megatron" x.pt --to safetensors
refused reshard "$megatron" x.pt --dp 1
refused reshard "$megatron" x.pt --dp 1 --dry-run
refused ckpt-convert "$plain" x.pt --to torch_dist
refused ckpt-convert "$plain" x.safetensors --to torch
refused ckpt-convert "$plain" x/ --to torch
refused ckpt-convert "$plain" x.bin --to safetensors
refused ckpt-convert "$plain" s3://bucket/x --to torch_dist
echo "--- nothing is left"
ls -A
echo "--- and these are what they say"
accepted() { echo "# $*" | sed "s|$GOLDEN|GOLDEN|"; "$@" > /dev/null 2>&1; echo "exit $?"; }
accepted ckpt-convert "$plain" x.pt --to torch
accepted ckpt-convert "$plain" x --to torch
accepted ckpt-convert "$plain" x.safetensors --to safetensors
accepted ckpt-convert "$plain" folder --to safetensors
accepted ckpt-convert "$plain" run.ckpt --to torch_dist
accepted reshard "$megatron" v1.2 --dp 1

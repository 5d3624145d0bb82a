ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" zip.safetensors --to safetensors -q --include '/dtypes/bool'
ckpt-inspect show zip.safetensors __metadata__
ckpt-inspect show zip.safetensors __metadata__ --json
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" __metadata__ || echo $?

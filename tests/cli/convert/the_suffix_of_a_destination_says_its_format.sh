cp "$GOLDEN/torch_save_zip/zip.pt" a.pt
ckpt-convert a.pt out.safetensors --include 'module_sd.*' --quiet && ckpt-inspect ls out.safetensors --limit 1
ckpt-convert out.safetensors back.pt --quiet && ckpt-inspect ls back.pt --limit 1
ckpt-convert a.pt out; echo "exit $?"
reshard a.pt out --tp 2; echo "exit $?"
ckpt-convert out.safetensors dcp --to torch_dist --quiet; reshard dcp out --tp 2; echo "exit $?"

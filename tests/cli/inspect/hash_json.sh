ckpt-inspect hash "$GOLDEN/torch_save_zip/bare_tensor.pt" --json

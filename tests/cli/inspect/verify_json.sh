ckpt-inspect verify "$GOLDEN/torch_save_zip/bare_tensor.pt" --json

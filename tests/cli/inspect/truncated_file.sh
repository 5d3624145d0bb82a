head -c 1000 "$GOLDEN/torch_save_zip/bare_tensor.pt" > cut.pt
ckpt-inspect cut.pt

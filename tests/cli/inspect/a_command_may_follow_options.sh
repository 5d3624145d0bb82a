ckpt-inspect --color never -j 1 --quiet ls "$GOLDEN/torch_save_zip/bare_tensor.pt"

cp "$GOLDEN/torch_save_zip/bare_tensor.pt" ls
ckpt-inspect ls ./ls
ckpt-inspect ./ls | head -n 3
ckpt-inspect -- ls | head -n 1

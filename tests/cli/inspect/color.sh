ckpt-inspect ls --color always "$GOLDEN/torch_save_zip/bare_tensor.pt"
ckpt-inspect ls --color auto "$GOLDEN/torch_save_zip/bare_tensor.pt"

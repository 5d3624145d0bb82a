ckpt-inspect ls --frobnicate "$GOLDEN/torch_save_zip/zip.pt"

ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" ""

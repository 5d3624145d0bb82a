ckpt-inspect ls "$GOLDEN/torch_save_zip/zip_nocrc.pt"

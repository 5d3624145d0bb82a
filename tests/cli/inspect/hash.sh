ckpt-inspect hash "$GOLDEN/torch_save_zip/zip_nocrc.pt"

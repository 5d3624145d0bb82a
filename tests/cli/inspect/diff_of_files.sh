ckpt-inspect diff "$GOLDEN/torch_save_zip/zip.pt" "$GOLDEN/torch_save_zip/zip_nocrc.pt"

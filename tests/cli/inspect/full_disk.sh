ckpt-inspect "$GOLDEN/torch_save_zip/zip.pt" > /dev/full

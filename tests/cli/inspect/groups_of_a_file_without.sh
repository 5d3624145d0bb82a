ckpt-inspect groups "$GOLDEN/torch_save_zip/zip.pt" || echo $?

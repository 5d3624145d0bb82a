name=$(printf 'n%.0s' {1..300})
ckpt-convert $GOLDEN/torch_save_zip/zip.pt $name --to torch_dist 2>&1 | sed s/nnn*/NAME/; echo "exit ${PIPESTATUS[0]}"
name=$(printf 'n%.0s' {1..255})
ckpt-convert $GOLDEN/torch_save_zip/zip.pt $name --to torch_dist | grep -vE "^(not carried|changed|everything)" | sed s/nnn*/NAME/
ls -A | grep -vE "^(not carried|changed|everything)" | sed s/nnn*/NAME/

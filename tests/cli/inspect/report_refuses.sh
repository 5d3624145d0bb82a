ckpt-inspect report "$GOLDEN/torch_save_zip/zip.pt" || echo $?
ckpt-inspect report nowhere -o page.html || echo $?
ckpt-inspect report "$GOLDEN/torch_save_zip/zip.pt" -o missing/page.html || echo $?
ckpt-inspect report "$GOLDEN/torch_save_zip/zip.pt" -o page.html --sample much || echo $?
ckpt-inspect report "$GOLDEN/torch_save_zip/README.md" -o page.html || echo $?
ln -s nowhere page.html
ckpt-inspect report "$GOLDEN/torch_save_zip/zip.pt" -o page.html || echo $?
ls

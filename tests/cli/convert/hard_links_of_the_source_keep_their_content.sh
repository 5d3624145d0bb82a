cp $GOLDEN/torch_save_zip/zip.pt . && ln zip.pt hard.pt && ln -s zip.pt soft.pt
sha256sum < zip.pt > before
ckpt-convert zip.pt model --to torch_dist -q > /dev/null
ckpt-convert model hard.pt --to torch --force
ckpt-convert zip.pt soft.pt --to torch --force; echo "exit $?"
sha256sum < zip.pt | diff before - && echo untouched
stat -c '%h links' zip.pt hard.pt

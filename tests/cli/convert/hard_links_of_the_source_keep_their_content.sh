quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
cp $GOLDEN/torch_save_zip/zip.pt . && ln zip.pt hard.pt && ln -s zip.pt soft.pt
sha256sum < zip.pt > before
ckpt-convert zip.pt model --to torch_dist -q > /dev/null
quiet ckpt-convert model hard.pt --to torch --force
quiet ckpt-convert model soft.pt --to torch --force; echo "exit $?"
sha256sum < zip.pt | diff before - && echo untouched
stat -c '%h links' zip.pt hard.pt

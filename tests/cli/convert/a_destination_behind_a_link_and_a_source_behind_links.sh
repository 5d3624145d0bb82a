quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
mkdir elsewhere real && ln -s elsewhere place
cp $GOLDEN/torch_save_zip/zip.pt real/ && ln -s real/zip.pt model.pt
quiet ckpt-convert model.pt place/out --to torch_dist
ls -A elsewhere

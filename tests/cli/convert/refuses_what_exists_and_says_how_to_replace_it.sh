quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
cp $GOLDEN/torch_save_zip/zip.pt . && mkdir out && echo mine > out/file
quiet ckpt-convert zip.pt out --to torch_dist; echo "exit $?"
cat out/file
quiet ckpt-convert zip.pt out --to torch_dist --force; echo "exit $?"
ls -A . out

cp $GOLDEN/torch_save_zip/zip.pt . && mkdir out && echo mine > out/file
ckpt-convert zip.pt out --to torch_dist; echo "exit $?"
cat out/file
ckpt-convert zip.pt out --to torch_dist --force; echo "exit $?"
ls -A . out

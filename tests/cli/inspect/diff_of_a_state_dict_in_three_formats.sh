# Names are those that ckpt-convert writes; what safetensors cannot hold is a difference.
cp "$GOLDEN/torch_save_zip/zip.pt" .
keys="--include module_sd.* --include optimizer.state.* --include epoch"
ckpt-convert zip.pt dcp --to torch_dist $keys --quiet
ckpt-convert zip.pt flat.safetensors --to safetensors $keys --quiet
ckpt-inspect diff zip.pt dcp $keys; echo "exit $?"
ckpt-inspect diff zip.pt flat.safetensors $keys; echo "exit $?"
ckpt-inspect diff dcp flat.safetensors --exclude epoch; echo "exit $?"
tensors="--include module_sd.* --include optimizer.state.*"
for path in zip.pt dcp flat.safetensors; do ckpt-inspect hash --logical -q $path $tensors; done | uniq | wc -l

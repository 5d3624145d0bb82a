# Layers come as people count them, in whatever order a file has them; what is no number stays.
printf '{"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}' > header
at=4
for layer in 0 1 10 11 2; do
  printf ',"h.%s.w":{"dtype":"F32","shape":[1],"data_offsets":[%s,%s]}' $layer $at $((at + 4)) >> header
  at=$((at + 4))
done
printf '}' >> header
size=$(stat -c %s header)
printf "\\$(printf %o $((size % 256)))\\$(printf %o $((size / 256)))\0\0\0\0\0\0" > layers.safetensors
cat header >> layers.safetensors
head -c $at /dev/zero >> layers.safetensors
ckpt-inspect tree layers.safetensors
ckpt-inspect tree layers.safetensors --json | grep '"name"'
ckpt-inspect layers.safetensors | sed -n '/MODULE/,/^$/p'

# One file is no reason for one process to write it: 1.5 MiB in six tensors, in pieces of 256 KiB.
layout=
for i in 0 1 2 3 4 5; do
  layout+="\"w$i\":{\"dtype\":\"U8\",\"shape\":[262144],\"data_offsets\":[$((i * 262144)),$(((i + 1) * 262144))]},"
done
header="{${layout%,}}"
length=${#header}
printf "\\x$(printf %02x $((length % 256)))\\x$(printf %02x $((length / 256)))\\0\\0\\0\\0\\0\\0%s" "$header" > from.safetensors
yes "some content that is not the same everywhere" | head -c 1572864 >> from.safetensors
for format in torch torch_dist safetensors; do
  [ $format = torch_dist ] && name= || name=.$format
  ckpt-convert from.safetensors whole$name --to $format -q > /dev/null
  for size in 2 3 8; do
    to=out$size$name
    for rank in $(seq $((size - 1)) -1 0); do
      ckpt-convert from.safetensors $to --to $format --rank $rank --world-size $size --piece-size 256K > said || cat said
      [ $size = 3 ] && sed -n 's/^this part/rank '$rank'/p' said
    done
    diff -r whole$name $to && echo "$size processes, $format: equal"
  done
done
# Processes that do not agree on the pieces are told.
ckpt-convert from.safetensors apart.torch --to torch --rank 0 --world-size 2 --piece-size 256K > /dev/null
ckpt-convert from.safetensors apart.torch --to torch --rank 1 --world-size 2 --piece-size 512K
echo "exit $?"
mv .apart.torch.shardwise-partial/content lost
ckpt-convert from.safetensors apart.torch --to torch --rank 1 --world-size 2 --piece-size 256K
echo "exit $?"
mv lost .apart.torch.shardwise-partial/content
ckpt-convert from.safetensors apart.torch --to torch --rank 1 --world-size 2 --piece-size 256K > /dev/null
cmp whole.torch apart.torch && echo equal
ls -A

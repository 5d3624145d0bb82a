from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
ckpt-convert "$from" whole --to torch_dist > /dev/null
for size in 1 2 3 8; do
  for rank in $(seq $((size - 1)) -1 0); do
    ckpt-convert "$from" out$size --to torch_dist --rank $rank --world-size $size -q > log || cat log
  done
  diff -r whole out$size && echo "$size processes: equal"
done
for rank in 0 1 2; do
  ckpt-convert "$from" together --to torch_dist --rank $rank --world-size 3 -q > log$rank &
done
wait
diff -r whole together && echo "3 at the same time: equal"
ls -A

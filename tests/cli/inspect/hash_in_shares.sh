from="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
hash() { ckpt-inspect hash "$from" "$@"; }
hash > whole
for rank in 0 1 2; do hash --rank $rank --world-size 3 > part$rank; done
head -3 part0
head -2 part1
RANK=1 WORLD_SIZE=3 hash --distributed 2> note | cmp - part1 && cat note
hash --finish part0 part1 part2 | cmp - whole && echo "put together: as if by one process"
hash --finish part0 part1 part2 --quiet
hash --rank 1 --world-size 3 --json > part1.json
hash --finish part0 part1.json part2 -c whole
hash --finish part0 part2 | head -1
hash --finish part0 part1 part2 part1
hash --rank 1 --world-size 3 -c whole
for rank in 0 1 2; do sed '/decoder.layers.mlp.linear_fc1.weight/s/^[0-9a-f]\{4\}/0000/' part$rank > other$rank; done
hash --finish other0 other1 other2 > other
for rank in 0 1 2; do hash --rank $rank --world-size 3 -c other || echo $?; done
hash -c part1 || echo $?
hash --rank 1 --world-size 3 --quiet || echo $?
hash --rank 1 --world-size 3 --finish part0 || echo $?

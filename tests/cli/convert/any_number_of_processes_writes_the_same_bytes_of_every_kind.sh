torch="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" torch_dist="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
# kind NAME PROGRAM SOURCE OPTION...
kind() {
  name=$1 program=$2 source=$3; shift 3
  $program "$source" whole "$@" > /dev/null
  for size in 1 2 3 8; do
    parts=0
    for rank in $(seq $((size - 1)) -1 0); do
      $program "$source" out "$@" --rank $rank --world-size $size --piece-size 16K > said || echo "rank $rank: exit $?"
      grep -q "^wrote this process's part of out: " said && parts=$((parts + 1))
    done
    diff -r whole out && echo "$name, $size processes: equal, $parts left a part"
    rm -r out
  done
  rm -r whole
}
kind "reshard torch" reshard "$torch" --dp 4
kind "reshard torch_dist" reshard "$torch_dist" --dp 4
kind "torch_dist to torch" ckpt-convert "$torch_dist" --to torch
kind "torch to torch_dist, zstd" ckpt-convert "$torch" --to torch_dist --zstd 3
kind "torch to torch_dist, integrity" ckpt-convert "$torch" --to torch_dist --integrity
ls -A

from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
share() { ckpt-convert "$from" out --to torch_dist --rank $1 --world-size $2 "${@:3}" > said; echo "exit $?"; head -1 said; }
share 0 2
share 1 2
if python3 -c 'import os; os.setxattr("out", "user.shardwise.test", b"")' 2> /dev/null; then
  share 1 2
else  # a file system without extended attributes cannot tell
  echo "exit 0"
  echo "nothing to do, the processes of this share wrote out: torch -> torch_dist, data parallel 2 -> 2, 6 files, 327.3 KiB"
fi
share 1 3
share 1 2 --zstd 3  # what is there is not compressed
share 1 2 --integrity
rm out/iter_0000003/common.pt
share 1 2

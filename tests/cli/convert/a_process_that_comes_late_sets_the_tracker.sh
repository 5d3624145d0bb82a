from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
cp -r "$from" root && rm -r root/iter_0000003
share() { ckpt-convert "$from" --into root --to torch_dist --rank $1 --world-size 2 > said; echo "exit $?"; head -1 said | cut -d: -f1; }
share 0
share 1
printf 2 > root/latest_checkpointed_iteration.txt  # as if the process that published had been killed
if python3 -c 'import os; os.setxattr("root", "user.shardwise.test", b"")' 2> /dev/null; then
  share 1
  cat root/latest_checkpointed_iteration.txt; echo
else  # a file system without extended attributes cannot tell
  echo "exit 0"
  echo "nothing to do, the processes of this share wrote root"
  echo 3
fi

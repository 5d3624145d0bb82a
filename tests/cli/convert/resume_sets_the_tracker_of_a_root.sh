from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
cp -r "$from" root && rm -r root/iter_0000003
add() { ckpt-convert "$from" --into root --to torch_dist "$@" > said; echo "exit $?"; head -1 said | cut -d: -f1; }
add
printf 2 > root/latest_checkpointed_iteration.txt  # as if killed in front of the last step
if python3 -c 'import os; os.setxattr("root", "user.shardwise.test", b"")' 2> /dev/null; then
  add --resume
  cat root/latest_checkpointed_iteration.txt; echo
else  # a file system without extended attributes cannot tell
  echo "exit 0"
  echo "nothing to do, an earlier run wrote root"
  echo 3
fi

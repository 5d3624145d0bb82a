from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" staging=.out.shardwise-partial
ckpt-convert "$from" whole --to torch_dist > /dev/null
convert() { ckpt-convert "$from" out --to torch_dist "$@" > said; echo "exit $?$(sed -n '1s/^\(.*\): torch -> .*/, \1/p' said)"; }

echo "== somebody holds the lock of who publishes, until the last process has left its part, too"
convert --rank 0 --world-size 2
exec 9> $staging/lock && flock 9
convert --rank 1 --world-size 2
convert --finish
exec 9>&-
ls -A
convert
convert --finish --zstd 3
ls -A
convert --finish
diff -r whole out && echo equal
if python3 -c 'import os; os.setxattr("whole", "user.shardwise.test", b"")' 2> /dev/null; then
  convert --finish
else  # a file system without extended attributes cannot tell
  echo "exit 0, nothing to do, an earlier run wrote out"
fi
ls -A

# So does one whose part is whole for who publishes.
rm -r out
convert --rank 0 --world-size 2
exec 9> $staging/part-0.lock && flock 9
(convert --rank 0 --world-size 2) 9>&- &
sleep 0.3; kill -0 $! && echo "== it waits"; exec 9>&-; wait $!
ckpt-convert "$from" out --to torch_dist --clean
cp -r whole out

# Who would publish waits while one that was started again looks at its part.
for signal in KILL TERM; do
  echo "== who would publish gets SIG$signal"
  rm -r out
  convert --rank 0 --world-size 2
  exec 9> $staging/part-0.lock && flock 9
  ckpt-convert "$from" out --to torch_dist --rank 1 --world-size 2 > said 2> warned 9>&- &
  for attempt in {1..600}; do grep -qs '^complete ' $staging/part-1 && break; sleep 0.05; done
  { kill -s $signal $!; sleep 0.5; exec 9>&-; wait $!; code=$?; } 2> /dev/null  # bash tells of SIGKILL
  echo "exit $code"
  cat said warned; rm warned
  ls -A
  convert --finish
  diff -r whole out && echo equal
done
ls -A

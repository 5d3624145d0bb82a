# Sent as soon as the process waits for signals; tried again where the run was faster.
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
run="step-replay run $sample/ckpt --grads $sample/expected --from-init -o out"
waits() { grep -q "^SigBlk:.*[4-7c-f]...$" "/proc/$1/status" 2> /dev/null; }  # SIGTERM: bit 14
left() { ls -A | grep -v '^said' | tr '\n' ' '; }
start() { $run "$@" > said 2> said.err & id=$!; for pause in $(seq 500); do waits $id && break; sleep 0.01; done; }
ends_with() {  # SIGNAL CODE [OPTION...]
  signal=$1 code=$2; shift 2
  for try in 1 2 3 4 5 6 7 8 9 10; do
    start "$@"
    kill -$signal $id 2> /dev/null
    wait $id; found=$?
    [ $found = $code ] && break
    rm -rf out
  done
  echo "$signal $*: exit $found, left: $(left)"
}
ends_with TERM 143
ends_with INT 130
ends_with TERM 143 --spawn 2
start
kill -USR1 $id; wait $id
echo "USR1: exit $?, left: $(left)"
rm -r out
$run --verify --strict > said 2> said.err
echo "--strict: exit $?, left: $(left)"
cat said.err
rm said said.err

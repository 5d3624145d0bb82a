# One signal is enough where a process waits for a peer that does not answer, and nothing is left.
export TMPDIR="$PWD/temporary"; mkdir "$TMPDIR"
left() { ls -A . "$TMPDIR" | grep -vx -e said -e temporary -e '.*:' -e ''; true; }
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
run="step-replay run $sample/ckpt --grads $sample/expected --from-init -o out"
# It has blocked INT, USR1, USR2, TERM and XCPU and nothing else: its own doing, for as long as it runs.
watches() { grep -q "^SigBlk:[[:space:]]*0*804a02$" "/proc/$1/status" 2> /dev/null; }
soon() { for pause in $(seq 3000); do "$@" && return; sleep 0.01; done; echo "not: $*"; }
is_gone() { ! kill -0 "$1" 2> /dev/null; }
# What --spawn started: PARENT RANK; waits until it is there.
process_of() {
  for pause in $(seq 3000); do
    for file in $(grep -lszx "SHARDWISE_SPAWN_PARENT=$1" /proc/[0-9]*/environ); do
      grep -qszx "SHARDWISE_SPAWN_RANK=$2" "$file" && basename "$(dirname "$file")" && return
    done
    sleep 0.01
  done
}
is_stopped() { grep -q "^State:.*T" "/proc/$1/status"; }
ends() {  # SIGNAL: of the process $id, with what it said
  kill "-$1" "$id"
  soon is_gone "$id"
  wait "$id"; echo "$1: exit $?"
  cat said
  left
}

# A launcher's second process whose first never comes: nobody listens at port 1.
for signal in TERM INT; do
  RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 $run > said 2>&1 & id=$!
  soon watches "$id"
  ends $signal
done
RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 $run --json > said 2>&1 & id=$!
soon watches "$id"
ends TERM

# A spawned process that waits for another, which is suspended.
$run --spawn 2 > said 2>&1 & id=$!
second=$(process_of "$id" 1)
kill -STOP "$second"
first=$(process_of "$id" 0)
soon is_stopped "$second"
soon watches "$first"
ends TERM
soon is_gone "$first"; soon is_gone "$second"

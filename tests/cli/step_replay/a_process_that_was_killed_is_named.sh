# The others end, and nothing is left: no output, no process, no temporary folder.
export TMPDIR="$PWD/temporary"; mkdir "$TMPDIR"
left() { ls -A . "$TMPDIR" | grep -vx -e temporary -e '.*:' -e ''; true; }
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
# What --spawn started: PARENT RANK; waits until it is there.
process_of() {
  for pause in $(seq 3000); do
    for file in $(grep -lszx "SHARDWISE_SPAWN_PARENT=$1" /proc/[0-9]*/environ); do
      grep -qszx "SHARDWISE_SPAWN_RANK=$2" "$file" && basename "$(dirname "$file")" && return
    done
    sleep 0.01
  done
}
killed() {  # RANK OPTION...
  rank=$1; shift
  step-replay run "$sample/ckpt" --grads "$sample/expected" --from-init -o out --spawn 3 "$@" &
  parent=$!
  killed=$(process_of $parent "$rank")
  kill -STOP "$killed"  # the others wait for it until they are found
  children=$(for other in 0 1 2; do process_of $parent $other; done)
  kill -KILL "$killed"
  wait $parent; echo "exit $?"
  for id in $children; do [ -e "/proc/$id" ] && echo "process left"; done
  left
}
killed 1
killed 2 --json

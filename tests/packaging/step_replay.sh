#!/usr/bin/env bash
# usage: step_replay.sh TREE TRACE. An installed step-replay steps with no environment at all, under
# both of its names, and uses LibTorch of the tree where that has one.
set -euo pipefail
tree=$1 trace=$2
for name in step-replay ckpt-step-replay; do
  env -i "$tree/bin/$name" check "$trace"
done
libraries=$(env -i /usr/bin/ldd "$tree/bin/step-replay")
if grep 'not found' <<<"$libraries"; then exit 1; fi
copy=$(find "$tree" -name libtorch_cpu.so)
used=$(sed -n 's/.*libtorch_cpu.so => \(.*\) (0x.*/\1/p' <<<"$libraries")
echo "LibTorch: $used"
[ -z "$copy" ] || [ "$copy" -ef "$used" ]

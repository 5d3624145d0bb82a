#!/usr/bin/env bash
# usage: copied_torch.sh BUILD_DIR TREE TRACE. `--component torch` makes a tree that needs no wheel.
set -euo pipefail
build=$1 tree=$2 trace=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rm -rf "$tree" "$tree.first"
cmake --install "$build" --prefix "$tree.first" >/dev/null
cmake --install "$build" --prefix "$tree.first" --component torch >/dev/null
mv "$tree.first" "$tree"
"$here/step_replay.sh" "$tree" "$trace"
# All that LibTorch needs beside the system's libraries lies in the tree, too.
for library in $(find "$tree" -name 'libtorch_cpu.so' -o -name 'libc10.so'); do
  ldd "$library" | sed -n 's/.* => \(.*\) (0x.*/\1/p' | while read -r used; do
    case "$(realpath "$used")" in
      "$(realpath "$tree")"/* | /lib/* | /usr/*) ;;
      *) echo "$library uses $used" >&2; exit 1 ;;
    esac
  done
done
rm -rf "$tree"  # half a gigabyte

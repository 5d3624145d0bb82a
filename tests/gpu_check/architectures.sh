#!/usr/bin/env bash
# Machine code for every architecture that we promise lies in the module.
# usage: architectures.sh MODULE CUOBJDUMP       exit 77: there is no cuobjdump
set -euo pipefail
[ -x "$2" ] || { echo "SKIP: needs cuobjdump"; exit 77; }
list=$("$2" "$1")
for architecture in sm_80 sm_90a sm_100; do
  grep -qx "arch = $architecture" <<<"$list" ||
    { echo "no code for $architecture in $1"; exit 1; }
done

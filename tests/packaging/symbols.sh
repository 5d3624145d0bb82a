#!/usr/bin/env bash
# usage: symbols.sh LIBRARY LIST [--update]
# LIBRARY exports exactly the symbols of LIST, all of them in our namespaces. A change of the list
# is a change of the ABI: it is made on purpose, with --update, and reviewed.
set -euo pipefail
library=$1 list=$2
found=$(nm -D --defined-only "$library" | awk '{ print $3 }' | c++filt | sort -u)
if [ "${3:-}" = --update ]; then
  printf '%s\n' "$found" >"$list"
fi
readonly ours='^((typeinfo|typeinfo name|vtable|VTT) for |(non-)?virtual thunk to )?(ckpt|optim)::'
strangers=$(grep -vE "$ours" <<<"$found" || true)
if [ -n "$strangers" ]; then
  printf 'exported, but not ours:\n%s\n' "$strangers"
  exit 1
fi
diff --label "$list" --label "$library" "$list" <(printf '%s\n' "$found")
echo "$(wc -l <"$list") symbols"

#!/usr/bin/env bash
# usage: portable.sh GLIBC FILE... Each FILE runs where glibc of this version is: it needs no newer
# symbol, and no library but those of glibc.
set -euo pipefail
glibc=$1
shift
for file in "$@"; do
  needed=$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  newest=$(readelf -VW "$file" | sed -n 's/.*Name: \([^ ]*_[0-9.]*\) .*/\1/p' | sort -uV)
  echo "$file:" $needed $newest
  newest=$(readelf -VW "$file" | sed -n 's/.*Name: \([^ ]*_[0-9.]*\) .*/\1/p' | sort -uV)
    echo "$file: a library that not every system has" >&2
    exit 1
  fi
  [ -n "$newest" ] || { echo "$file: no versions of symbols" >&2; exit 1; }
  if grep -vE '^GLIBC_[0-9.]+$' <<<"$newest" ||
    [ "$(printf '%s\n' "GLIBC_$glibc" $newest | sort -V | tail -1)" != "GLIBC_$glibc" ]; then
    echo "$file: newer than glibc $glibc" >&2
    exit 1
  fi
done

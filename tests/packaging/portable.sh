#!/usr/bin/env bash
# usage: portable.sh GLIBC FILE... Each FILE runs where glibc of this version is: it needs no newer
# symbol, and no library but those of glibc.
set -euo pipefail
glibc=$1
shift
readonly libraries='^(lib(c|m|pthread|dl|rt)\.so\.[0-9]|ld-linux-[a-z0-9-]*\.so\.[0-9])$'
for file in "$@"; do
  needed=$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  versions=$(readelf -VW "$file" | sed -n 's/.*Name: \([^ ]*_[0-9.]*\) .*/\1/p' | sort -uV)
  echo "$file:" $needed $versions
  if grep -vE "$libraries" <<<"$needed"; then
    echo "$file: a library that not every system has" >&2
    exit 1
  fi
  [ -n "$versions" ] || { echo "$file: no versions of symbols" >&2; exit 1; }
  newest=$(printf '%s\n' "GLIBC_$glibc" $versions | sort -V | tail -1)
  if grep -vE '^GLIBC_[0-9.]+$' <<<"$versions" || [ "$newest" != "GLIBC_$glibc" ]; then
    echo "$file: newer than glibc $glibc" >&2
    exit 1
  fi
done

#!/usr/bin/env bash
# usage: destdir.sh BUILD_DIR WORK_DIR. What packagers do: DESTDIR takes every file, an absolute
# prefix is kept below it, and the manifest lists all that was installed.
set -euo pipefail
build=$1 work=$2
rm -rf "$work"
DESTDIR=$work cmake --install "$build" --prefix /opt/shardwise >/dev/null
outside=$(find "$work" -not -type d -not -path "$work/opt/shardwise/*")
[ -z "$outside" ] || { echo "not below the prefix: $outside" >&2; exit 1; }
diff <(sort "$build/install_manifest.txt") \
  <(find "$work" -not -type d -printf '/%P\n' | sort)
echo "$(wc -l <"$build/install_manifest.txt") files"
rm -rf "$work"

#!/usr/bin/env bash
# usage: soname.sh LIBRARY SONAME
set -euo pipefail
found=$(readelf -d "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
echo "$found"
[ "$found" = "$2" ]

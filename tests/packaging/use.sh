#!/usr/bin/env bash
# usage: use.sh cmake|pkg-config TREE COMPONENT WORK_DIR [PYTHON_WITH_TORCH] -- [ARGUMENT...]
# Builds the example project of a component against an installed tree, from outside, and runs it.
set -euo pipefail
method=$1 tree=$2 component=$3 work=$4 python=$5
shift 6
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)
rm -rf "$work"
mkdir -p "$work"
case "$method" in
  cmake)
    cmake -G Ninja -S "$examples/$component" -B "$work" -DCMAKE_PREFIX_PATH="$tree" \
      -DTORCH_WHEEL_PYTHON="$python" --log-level=WARNING
    cmake --build "$work"
    ;;
  pkg-config)
    pc=$(dirname "$(find "$tree" -name shardwise-ckpt.pc)")
    export PKG_CONFIG_PATH=$pc
    read -ra flags < <(pkg-config --cflags --libs "shardwise-$component")
    g++ -std=c++20 -O1 "$examples/$component/main.cc" -o "$work/example" "${flags[@]}" \
      -Wl,-rpath,"$(pkg-config --variable=libdir shardwise-ckpt)"
    ;;
esac
"$work/example" "$@"
if [ "$component" = ckpt ]; then  # what the library throws is caught outside of it
  code=0
  "$work/example" "$work/not there" || code=$?
  [ "$code" = 1 ]
fi

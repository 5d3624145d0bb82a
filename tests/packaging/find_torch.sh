#!/usr/bin/env bash
# usage: find_torch.sh TREE WORK_DIR TORCH. A project that asks an installed tree for optim finds
# LibTorch, which lies in TORCH, by each documented way; a wrong way is told what to do.
set -euo pipefail
tree=$1 work=$2 torch=$3
rm -rf "$work"
mkdir -p "$work/project" "$work/builds" "$work/site/torch/lib" \
  "$work/site/torch/include/torch/headeronly"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(finds_torch LANGUAGES CXX)
find_package(shardwise REQUIRED COMPONENTS optim)
message(STATUS "LibTorch ${TorchWheel_VERSION} in ${TorchWheel_DIR}")
END

configure() {  # NAME OPTION...
  local name=$1
  shift
  cmake -G Ninja -S "$work/project" -B "$work/builds/$name" "$@" >"$work/$name.log" 2>&1
}

found_by() {  # NAME EXPECTED_FOLDER OPTION...
  local name=$1 expected=$2
  shift 2
  configure "$name" "$@" || { cat "$work/$name.log" >&2; exit 1; }
  grep -q "LibTorch .* in $expected\$" "$work/$name.log" || {
    echo "$name: expected $expected" >&2; grep LibTorch "$work/$name.log" >&2; exit 1
  }
  echo "$name: found"
}

refused() {  # NAME EXPECTED_TEXT OPTION...
  local name=$1 expected=$2
  shift 2
  if configure "$name" "$@"; then echo "$name: not refused" >&2; exit 1; fi
  local text
  text=$(tr -s ' \n' ' ' <"$work/$name.log")
  for part in "$expected" TORCH_WHEEL_PYTHON Torch_DIR CMAKE_PREFIX_PATH; do
    [[ $text == *"$part"* ]] || { echo "$name: no '$part' in: $text" >&2; exit 1; }
  done
  [[ $text != *scripts/setup* ]] || { echo "$name: scripts/setup is not installed" >&2; exit 1; }
  echo "$name: refused"
}

# Another wheel that can be told from the first.
ln -s "$torch" "$work/wheel"
printf '#!/bin/sh\necho "%s"\n' "$work/wheel" >"$work/python"
printf '#!/bin/sh\necho\n' >"$work/python_without"
chmod +x "$work/python" "$work/python_without"
touch "$work/site/torch/lib/libtorch_cpu.so" "$work/site/torch/lib/libgomp.so.1"
printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 10' 'PATCH 1' \
  >"$work/site/torch/include/torch/headeronly/version.h"

prefix=-DCMAKE_PREFIX_PATH=$tree
found_by default "$torch" "$prefix"
found_by python "$work/wheel" "$prefix" -DTORCH_WHEEL_PYTHON="$work/python"
found_by wheel "$work/wheel" "$prefix" -DTORCH_WHEEL_DIR="$work/wheel"
found_by torch_dir "$work/wheel" "$prefix" -DTorch_DIR="$work/wheel/share/cmake/Torch"
found_by prefix "$work/wheel" "$prefix;$work/wheel"
found_by cmake_prefix "$work/wheel" "$prefix;$work/wheel/share/cmake"
CMAKE_PREFIX_PATH=$work/wheel found_by environment "$work/wheel" "$prefix"

refused python_without "no LibTorch in the python TORCH_WHEEL_PYTHON" \
  "$prefix" -DTORCH_WHEEL_PYTHON="$work/python_without"
refused nowhere "no LibTorch in Torch_DIR" "$prefix" -DTorch_DIR="$work/nowhere/share/cmake/Torch"
refused other_version "LibTorch 2.10.1" "$prefix" -DTORCH_WHEEL_DIR="$work/site/torch"

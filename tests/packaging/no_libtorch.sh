#!/usr/bin/env bash
# usage: no_libtorch.sh FILE. Neither FILE nor what it loads needs LibTorch, CUDA or Python.
set -euo pipefail
needed=$(readelf -d "$1" | grep NEEDED; ldd "$1" | sed 's, (0x.*,,')  # without addresses
echo "$needed"
! grep -E 'libtorch|libc10|libcuda|libnccl|libpython' <<<"$needed"

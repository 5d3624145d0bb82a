#!/usr/bin/env bash
# usage: no_libtorch.sh FILE. Neither FILE nor what it loads needs LibTorch, CUDA or Python.
set -euo pipefail
needed=$(readelf -d "$1" | grep NEEDED; ldd "$1")
echo "$needed"
! grep -E 'torch|c10|cudart|cuda|nccl|python' <<<"$needed"

#!/bin/bash
# The same with PyTorch's launcher, on each node.
#
#   NODES=2 RENDEZVOUS=node1:29500 ./convert_torchrun.sh /data/ckpt /data/ckpt_torch --to torch
set -euo pipefail

torchrun --no-python --nnodes "${NODES:-1}" --nproc-per-node "${PROCESSES:-1}" \
  --rdzv-backend c10d --rdzv-endpoint "${RENDEZVOUS:-localhost:29500}" \
  "$(command -v ckpt-convert)" "$@" --distributed --no-progress

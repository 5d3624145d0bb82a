#!/bin/bash
# The same with Open MPI; MPICH and Intel MPI start it with `mpiexec -n 8`.
#
#   HOSTS=node1,node2 PROCESSES=8 ./convert_mpi.sh /data/ckpt /data/ckpt_torch --to torch
set -euo pipefail

mpirun ${HOSTS:+--host "$HOSTS"} -n "${PROCESSES:-8}" ${MPI_OPTIONS:-} \
  ckpt-convert "$@" --distributed --no-progress

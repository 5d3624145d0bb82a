#pragma once

#include <ckpt/archive_builder.h>

#include "layouts/job/layer_wise_target.h"

namespace optim {

// rng_state of a rank as Megatron seeds a fresh start: Python's, NumPy's and PyTorch's generators
// with args.seed + 100 x stage (+ 10 x data-parallel rank with data_parallel_random_init, one state
// for each), CUDA's with the same, and the trackers of tensor, data and expert parallelism.
// Source: _set_random_seed of megatron/training/initialize.py, model_parallel_cuda_manual_seed of
// megatron/core/tensor_parallel/random.py. Throws Unsupported where args have no seed.
ckpt::NodeId seeded_rng(const TargetJob& job, const RankCoordinates& at,
                        ckpt::ArchiveBuilder& archive);

}  // namespace optim

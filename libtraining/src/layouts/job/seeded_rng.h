#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// State of the Mersenne Twister MT19937 when it is seeded, before the first number is drawn.
// Source: Matsumoto and Nishimura, mt19937ar (2002): init_genrand and init_by_array.
using TwisterState = std::array<uint32_t, 624>;

inline TwisterState seeded_twister(uint32_t seed) {
  TwisterState state;
  state[0] = seed;
  for (uint32_t i = 1; i < state.size(); ++i) {
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  }
  return state;
}

// With a key of one number, as Python seeds with an int below 2^32.
inline TwisterState keyed_twister(uint32_t key) {
  constexpr size_t kCount = std::tuple_size_v<TwisterState>;
  TwisterState state = seeded_twister(19650218U);
  size_t i = 1;
  const auto mix = [&](uint32_t factor, uint32_t added) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * factor)) + added;
    if (++i < kCount) return;
    state[0] = state[kCount - 1];
    i = 1;
  };
  for (size_t k = 0; k < kCount; ++k) mix(1664525U, key);
  for (size_t k = 1; k < kCount; ++k) mix(1566083941U, static_cast<uint32_t>(0 - i));
  state[0] = 0x80000000U;
  return state;
}

}  // namespace optim

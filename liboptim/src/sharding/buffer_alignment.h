#pragma once

#include <cstdint>
#include <numeric>

// How Megatron-Core aligns parameters and buckets in a data-parallel buffer, in elements.
// Source: pad_param_start and pad_bucket_end of megatron/core/optimizer/param_layout.py (August
// 2026); the same numbers in param_and_grad_buffer.py (April 2026).
namespace optim {

inline constexpr uint64_t kParamAlignment = 64;  // 128 bytes at 16 bits each

inline uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Of the end of a bucket that `rank_count` >= 1 ranks share: 256 bytes at 16 bits each, the same
// share for each rank, and for NCCL's rings 2^16 elements.
inline uint64_t bucket_alignment(uint64_t rank_count, bool pad_for_high_nccl_busbw) {
  constexpr uint64_t kBucketAlignment = 128, kBusAlignment = 65536;
  const uint64_t alignment = std::lcm(rank_count, kBucketAlignment);
  return pad_for_high_nccl_busbw ? std::lcm(alignment, kBusAlignment) : alignment;
}

}  // namespace optim

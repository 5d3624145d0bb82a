#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <optim/sharded_tensor.h>

namespace optim {

// Where Megatron-Core 0.20-dev puts whole parameters in the buckets of a data-parallel
// buffer, so that a reduce-scatter gives each rank the gradients of the parameters that it updates.
// Reconstructed from recorded layouts (docs/optimizer.md, "Ownership").

struct LptOptions {
  uint32_t data_parallel = 1;
  // Parameters of each bucket, counted from the model's last parameter backwards; empty: one
  // bucket.
  std::vector<uint32_t> bucket_param_counts = {};
  bool pad_buckets_for_high_nccl_busbw = false;  // bucket sizes are multiples of 2^16 elements
};

struct ElementRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const ElementRange&) const = default;
};

struct LptLayout {
  // [parameter], in the order of the shapes
  std::vector<uint32_t> shard;      // the rank that updates it
  std::vector<uint32_t> bucket;     // the bucket that it lies in
  std::vector<ElementRange> place;  // in the buffer
  std::vector<uint32_t> assigned;   // parameters in the order of the buffer
  // [bucket]
  std::vector<ElementRange> buckets;      // in the buffer, the same share of it for each rank
  std::vector<uint64_t> bucket_elements;  // without padding
};

// Within each bucket the costliest parameter first goes to the least loaded rank (the lower one
// among equals) of those that it does not bring above 1.3 times the bucket's mean elements; where
// there is none, to the rank with the fewest elements in this bucket. Loads add up over buckets.
// Pure. Throws Error(InvalidArgument) for shapes with negative sizes, for data_parallel = 0, and
// when the counts of parameters do not add up.
LptLayout lpt_layout(std::span<const Shape> shapes, const LptOptions& options);

}  // namespace optim

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <optim/layout_export.h>
#include <optim/lpt_layout.h>

// Where a data-parallel buffer of Megatron-Core puts its parameters: the buffers of
// DistributedDataParallel, over which a DistributedOptimizer (ZeRO-1) cuts its state. Pure numbers,
// in elements. What core 0.20-dev does for the parameters of LayerWise is lpt_layout().
// Source: _ParamAndGradBuffer of megatron/core/distributed/param_and_grad_buffer.py (core
// 0.18-dev), DistributedOptimizer._compute_per_buffer_param_layout (core 0.20-dev: the same rules).
namespace optim {

struct BufferRules {
  uint64_t param_alignment = 1;   // parameters start at multiples of it
  uint64_t bucket_alignment = 1;  // buckets end at multiples of it
  // A bucket ends behind the parameter with which it has at least so many elements; nullopt: one
  // bucket.
  std::optional<uint64_t> bucket_elements = {};
  bool shared_embedding_apart = false;  // a bucket of its own
};

// Of a buffer whose state `rank_count` >= 1 ranks share: the data and context parallel ranks, or
// the expert data parallel ones, of one distributed optimizer instance.
// `pad_for_high_nccl_busbw`: --ddp-pad-buckets-for-high-nccl-busbw.
OPTIM_LAYOUT_EXPORT BufferRules distributed_optimizer_buffers(uint32_t rank_count,
                                                              bool pad_for_high_nccl_busbw);

// What decides the size of a model chunk's buckets, as Megatron's arguments of these names.
struct BucketArguments {
  bool overlap_grad_reduce = false;
  bool overlap_param_gather_with_optimizer_step = false;
  // --ddp-bucket-size, or the rank's parameters / --ddp-num-buckets, rounded down
  std::optional<uint64_t> bucket_size = {};
  uint32_t data_parallel_ranks = 1;  // with context parallel ones: for the default
};
struct ChunkPlace {
  uint32_t stage = 0, chunk = 0;
};
// Only the first chunk of the first stage has more than one bucket, and only with
// overlap_grad_reduce; then max(40e6, 1e6 * data_parallel_ranks) elements by default.
// Source: distributed_data_parallel.py and training.py (disable_bucketing).
std::optional<uint64_t> bucket_elements(const BucketArguments& arguments, ChunkPlace place);

struct FlatParam {
  uint64_t element_count = 0;
  bool is_shared_embedding = false;  // one of the two copies of a tied embedding, where stages > 1
};

struct FlatPlace {
  ElementRange range;  // in the buffer, padding counted
  uint32_t bucket = 0;
  bool operator==(const FlatPlace&) const = default;
};

struct FlatBucket {
  ElementRange range;       // in the buffer, with the padding at its end
  uint64_t unpadded_count;  // without that padding, but with the gaps between parameters
  // Where it starts when the unpadded contents of all buckets are put one behind the other: in the
  // world tensor of distrib_optim.pt.
  uint64_t compact_begin;
  bool operator==(const FlatBucket&) const = default;
};

struct FlatLayout {
  std::vector<FlatPlace> places;    // [parameter], in the order given
  std::vector<FlatBucket> buckets;  // in the order of the buffer
  uint64_t element_count() const { return buckets.empty() ? 0 : buckets.back().range.end; }
  uint64_t unpadded_count() const {
    return buckets.empty() ? 0 : buckets.back().compact_begin + buckets.back().unpadded_count;
  }
  // Where parameter `id` starts in that world tensor.
  uint64_t compact_begin(size_t id) const {
    const FlatBucket& bucket = buckets[places[id].bucket];
    return places[id].range.begin - bucket.range.begin + bucket.compact_begin;
  }
};

// `params` in the order in which the model registers them; the buffer holds them from the last one
// to the first. Throws Error(InvalidArgument) when the buffer would have 2^63 or more elements.
OPTIM_LAYOUT_EXPORT FlatLayout lay_out_flat(std::span<const FlatParam> params,
                                            const BufferRules& rules);

}  // namespace optim

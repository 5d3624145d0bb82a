#include "sharding/flat_layout.h"

#include <algorithm>
#include <utility>

#include <ckpt/error.h>

#include "sharding/buffer_alignment.h"

namespace optim {
namespace {

constexpr uint64_t kBufferMax = uint64_t{1} << 63;

// Lays one parameter behind the other; a bucket is open from its first parameter on.
class Buffer {
 public:
  explicit Buffer(const BufferRules& rules) : rules_(rules) {}

  FlatPlace add(const FlatParam& param) {
    next_ = round_up(next_, rules_.param_alignment);
    const bool apart = param.is_shared_embedding && rules_.shared_embedding_apart;
    if (apart && is_open_) close();  // the gap in front of the parameter counts for this bucket
    if (param.element_count >= kBufferMax - next_) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}},
                        "a data-parallel buffer would have 2^63 elements or more");
    }
    const FlatPlace place = {{next_, next_ + param.element_count},
                             static_cast<uint32_t>(buckets_.size())};
    next_ = place.range.end;
    is_open_ = true;
    const bool is_full = rules_.bucket_elements && next_ - begin_ >= *rules_.bucket_elements;
    if (apart || is_full) close();
    return place;
  }

  std::vector<FlatBucket> finish() {
    if (is_open_) close();
    return std::move(buckets_);
  }

 private:
  void close() {
    const uint64_t end = round_up(next_, rules_.bucket_alignment);
    buckets_.push_back({{begin_, end}, next_ - begin_, compact_});
    compact_ += next_ - begin_;
    begin_ = next_ = end;
    is_open_ = false;
  }

  const BufferRules& rules_;
  std::vector<FlatBucket> buckets_;
  uint64_t begin_ = 0, next_ = 0, compact_ = 0;
  bool is_open_ = false;
};

}  // namespace

BufferRules distributed_optimizer_buffers(uint32_t rank_count, bool pad_for_high_nccl_busbw) {
  return {.param_alignment = kParamAlignment,
          .bucket_alignment = bucket_alignment(rank_count, pad_for_high_nccl_busbw),
          .shared_embedding_apart = true};
}

std::optional<uint64_t> bucket_elements(const BucketArguments& arguments, ChunkPlace place) {
  const bool first_only = arguments.overlap_param_gather_with_optimizer_step;
  if (!arguments.overlap_grad_reduce || place.stage > 0 || place.chunk > 0 || first_only) {
    return std::nullopt;
  }
  return arguments.bucket_size.value_or(
      std::max(uint64_t{40'000'000}, uint64_t{1'000'000} * arguments.data_parallel_ranks));
}

FlatLayout lay_out_flat(std::span<const FlatParam> params, const BufferRules& rules) {
  FlatLayout layout;
  layout.places.resize(params.size());
  Buffer buffer(rules);
  for (size_t id = params.size(); id-- > 0;) layout.places[id] = buffer.add(params[id]);
  layout.buckets = buffer.finish();
  return layout;
}

}  // namespace optim

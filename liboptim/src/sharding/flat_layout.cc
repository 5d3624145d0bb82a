// Where Megatron-Core puts parameters in data-parallel buffers, how it aligns them and their
// buckets, in elements. Source: pad_param_start and pad_bucket_end of
// megatron/core/optimizer/param_layout.py (core 0.20-dev); the same numbers in
// param_and_grad_buffer.py (core 0.18-dev).
#include "sharding/flat_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include <optim/param_key.h>

#include "sharding/refuse.h"

namespace optim {
namespace {

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
      refuse("a data-parallel buffer would have 2^63 elements or more");
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

constexpr double kCapOverMean = 1.3;

// What the recorded layouts order and balance by. For other tensors than matrices they fix the
// constant to between 3 and 8 elements.
double lpt_cost(const Shape& shape, uint64_t elements) {
  constexpr double kVectorOverhead = 4;
  if (shape.size() != 2) return static_cast<double>(elements) + kVectorOverhead;
  return static_cast<double>(elements) * static_cast<double>(std::min(shape[0], shape[1]));
}

// The ranks while a bucket is dealt. Two queues over the same ranks: by load and by elements; an
// entry that is out of date is dropped when it comes up.
struct Shard {
  double load = 0;        // over all buckets
  uint64_t elements = 0;  // in this bucket
};

class Dealer {
 public:
  Dealer(std::span<const Shape> shapes, const LptOptions& options)
      : shapes_(shapes), options_(options), shards_(options.data_parallel) {
    for (const Shape& shape : shapes) {
      elements_.push_back(element_count({.name = "lpt_layout", .shape = shape}));
      cost_.push_back(lpt_cost(shape, elements_.back()));
    }
    layout_.shard.resize(shapes.size());
    layout_.bucket.resize(shapes.size());
    layout_.place.resize(shapes.size());
  }

  LptLayout deal() {
    std::vector<uint32_t> counts = options_.bucket_param_counts;
    if (counts.empty() && !shapes_.empty()) counts = {static_cast<uint32_t>(shapes_.size())};
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    if (total != shapes_.size()) refuse("the buckets must hold each parameter exactly once");
    auto next = static_cast<uint32_t>(shapes_.size());
    for (const uint32_t count : counts) {
      std::vector<uint32_t> params(count);
      for (uint32_t& param : params) param = --next;
      deal_bucket(std::move(params));
    }
    return std::move(layout_);
  }

 private:
  void deal_bucket(std::vector<uint32_t> params) {
    uint64_t elements = 0;
    for (const uint32_t param : params) elements += elements_[param];
    layout_.bucket_elements.push_back(elements);
    std::ranges::stable_sort(params, std::greater<>(), [&](uint32_t id) { return cost_[id]; });
    const double cap =
        kCapOverMean * static_cast<double>(elements) / static_cast<double>(shards_.size());
    start_queues();
    std::vector<std::vector<uint32_t>> dealt(shards_.size());
    for (const uint32_t param : params) {
      const uint32_t shard = choose(elements_[param], cap);
      shards_[shard].load += cost_[param];
      shards_[shard].elements += elements_[param];
      enqueue(shard);
      layout_.shard[param] = shard;
      dealt[shard].push_back(param);
    }
    place_bucket(dealt);
  }

  using ByLoad = std::tuple<double, uint32_t, uint64_t>;  // load, rank, elements
  using ByElements = std::tuple<uint64_t, uint32_t>;      // elements, rank
  template <class T>
  using Queue = std::priority_queue<T, std::vector<T>, std::greater<>>;

  void start_queues() {
    by_load_ = {};
    by_elements_ = {};
    for (uint32_t rank = 0; rank < shards_.size(); ++rank) {
      shards_[rank].elements = 0;
      enqueue(rank);
    }
  }
  void enqueue(uint32_t rank) {
    by_load_.emplace(shards_[rank].load, rank, shards_[rank].elements);
    by_elements_.emplace(shards_[rank].elements, rank);
  }

  // The least loaded rank below the cap. Ranks that are passed over come back: they may be below
  // it for a smaller parameter.
  uint32_t choose(uint64_t elements, double cap) {
    std::vector<ByLoad> passed;
    uint32_t chosen = fewest_elements();
    while (!by_load_.empty()) {
      const ByLoad top = by_load_.top();
      by_load_.pop();
      const auto [load, rank, held] = top;
      if (load != shards_[rank].load || held != shards_[rank].elements) continue;
      passed.push_back(top);
      if (static_cast<double>(held + elements) > cap) continue;
      chosen = rank;
      break;
    }
    for (const ByLoad& entry : passed) by_load_.push(entry);
    return chosen;
  }
  uint32_t fewest_elements() {
    while (std::get<0>(by_elements_.top()) != shards_[std::get<1>(by_elements_.top())].elements) {
      by_elements_.pop();
    }
    return std::get<1>(by_elements_.top());
  }

  // Parameters one after the other in each rank's share; shares of one size.
  void place_bucket(const std::vector<std::vector<uint32_t>>& dealt) {
    uint64_t share = 0;
    for (const auto& params : dealt) {
      uint64_t end = 0;
      for (const uint32_t param : params) end += round_up(elements_[param], kParamAlignment);
      share = std::max(share, end);
    }
    const uint64_t ranks = dealt.size();
    const uint64_t alignment = bucket_alignment(ranks, options_.pad_buckets_for_high_nccl_busbw);
    const uint64_t begin = layout_.buckets.empty() ? 0 : layout_.buckets.back().end;
    const uint64_t size = round_up(share * ranks, alignment);
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      uint64_t at = begin + rank * (size / ranks);
      for (const uint32_t param : dealt[rank]) {
        layout_.place[param] = {at, at + elements_[param]};
        layout_.bucket[param] = static_cast<uint32_t>(layout_.buckets.size());
        layout_.assigned.push_back(param);
        at += round_up(elements_[param], kParamAlignment);
      }
    }
    layout_.buckets.push_back({begin, begin + size});
  }

  std::span<const Shape> shapes_;
  const LptOptions& options_;
  std::vector<uint64_t> elements_;
  std::vector<double> cost_;
  std::vector<Shard> shards_;
  Queue<ByLoad> by_load_;
  Queue<ByElements> by_elements_;
  LptLayout layout_;
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

LptLayout lpt_layout(std::span<const Shape> shapes, const LptOptions& options) {
  if (options.data_parallel == 0) refuse("data_parallel is 0; it must be at least 1");
  return Dealer(shapes, options).deal();
}

}  // namespace optim

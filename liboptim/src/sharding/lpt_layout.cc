#include <optim/lpt_layout.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <optim/param_key.h>

#include "sharding/buffer_alignment.h"
#include "sharding/refuse.h"

namespace optim {
namespace {

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

LptLayout lpt_layout(std::span<const Shape> shapes, const LptOptions& options) {
  if (options.data_parallel == 0) refuse("data_parallel is 0; it must be at least 1");
  return Dealer(shapes, options).deal();
}

}  // namespace optim

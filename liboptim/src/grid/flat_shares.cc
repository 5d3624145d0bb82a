// The parts of flat buffers that ranks own.
// Source: DistributedDataParallel of megatron/core/distributed, which allocates the buffers, and
// DistributedOptimizer._build_model_gbuf_range of megatron/core/optimizer.
#include "grid/flat_shares.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";

bool flag(const Value& args, std::string_view name) {
  const auto value = args.find(name);
  return value && value->is(Kind::Bool) && value->as_bool();
}

std::optional<uint64_t> positive(const Value& args, std::string_view name) {
  const auto value = args.find(name);
  if (!value || !value->is(Kind::Int) || value->as_int() < 1) return std::nullopt;
  return static_cast<uint64_t>(value->as_int());
}

// `rank_elements`: of all parameters of a rank.
BucketArguments bucket_arguments(const Value& args, uint64_t rank_elements, uint32_t dp_cp) {
  BucketArguments arguments{
      .overlap_grad_reduce = flag(args, "overlap_grad_reduce"),
      .overlap_param_gather_with_optimizer_step =
          flag(args, "overlap_param_gather_with_optimizer_step"),
      .bucket_size = positive(args, "ddp_bucket_size"),
      .data_parallel_ranks = dp_cp,
  };
  if (const auto buckets = positive(args, "ddp_num_buckets")) {
    arguments.bucket_size = rank_elements / *buckets;
  }
  return arguments;
}

// Of a bucket's elements the part that one of the ranks owns.
ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count) {
  const uint64_t part = (bucket.range.end - bucket.range.begin) / rank_count;
  const uint64_t begin = bucket.range.begin + rank * part;
  return {begin, begin + part};
}

}  // namespace

FlatShares::FlatShares(const TrainingState& state, const Placement& placement,
                       std::function<bool(uint32_t)> is_flat)
    : state_(state), placement_(placement), is_flat_(std::move(is_flat)) {
  const ParallelSizes& sizes = placement.grid().sizes;
  for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
    for (uint32_t expert = 0; expert < sizes.expert_parallel; ++expert) {
      stages_.emplace(std::pair(stage, expert), buffers_on(stage, expert));
    }
  }
}

uint32_t FlatShares::rank_count(const BufferKey& key) const {
  const ParallelSizes& sizes = placement_.grid().sizes;
  return key.is_expert ? sizes.expt_dp() : sizes.dp_cp();
}

FlatShares::Buffers FlatShares::buffers_on(uint32_t stage, uint32_t expert_rank) const {
  const ParallelSizes& sizes = placement_.grid().sizes;
  Buffers buffers;
  uint64_t rank_elements = 0;
  for (const HeldEntry& held : placement_.held(stage, expert_rank)) {
    const ModelEntry& entry = state_.model[held.entry];
    if (entry.what != ModelEntry::What::Param) continue;
    const TrainedParam& param = state_.params[entry.param];
    const uint64_t elements = ckpt::element_count(placement_.shape_on_rank(entry.param));
    rank_elements += elements;
    if (!param.info.requires_grad || !is_flat_(entry.param)) continue;
    const bool is_expert = placement_.is_expert(entry.param) && sizes.expert_parallel > 1;
    Buffer& buffer = buffers[{held.chunk, is_expert, param.info.dtype}];
    buffer.params.push_back(entry.param);
    buffer.sizes.push_back({elements, entry.name == kWordEmbeddings &&
                                          sizes.pipeline_parallel > 1 &&
                                          placement_.chunks_of_entry(held.entry).size() > 1});
  }
  const Value args = state_.args();
  const BucketArguments arguments = bucket_arguments(args, rank_elements, sizes.dp_cp());
  for (auto& [key, buffer] : buffers) {
    BufferRules rules = distributed_optimizer_buffers(
        rank_count(key), flag(args, "ddp_pad_buckets_for_high_nccl_busbw"));
    rules.bucket_elements = bucket_elements(arguments, {stage, key.chunk});
    buffer.layout = lay_out_flat(buffer.sizes, rules);
  }
  return buffers;
}

std::vector<FlatShare> FlatShares::of(const RankCoordinates& rank) const {
  std::vector<FlatShare> shares;
  for (const auto& [key, buffer] : stages_.at({rank.pp, rank.ep})) {
    const uint32_t number = key.is_expert ? rank.edp : rank.dp_cp;
    for (size_t i = 0; i < buffer.params.size(); ++i) {
      const FlatPlace& place = buffer.layout.places[i];
      const ElementRange own =
          own_part(buffer.layout.buckets[place.bucket], number, rank_count(key));
      const uint64_t begin = std::max(own.begin, place.range.begin);
      const uint64_t end = std::min(own.end, place.range.end);
      if (begin >= end) continue;
      shares.push_back({buffer.params[i], {begin - place.range.begin, end - place.range.begin}});
    }
  }
  std::ranges::stable_sort(shares, {}, &FlatShare::param);
  return shares;
}

}  // namespace optim

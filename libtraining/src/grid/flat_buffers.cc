// Buffers of DistributedDataParallel, which a DistributedOptimizer cuts. Source: get_model of
// megatron/training/training.py, get_megatron_optimizer of megatron/core/optimizer/__init__.py.
#include "grid/flat_buffers.h"

#include "grid/rank_files.h"
#include "grid/sharing_of_params.h"
#include "state/words.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace optim {
namespace {

class Arguments {
 public:
  Arguments(const Value& args, const std::string& file) : args_(args), file_(file) {}

  bool is_set(std::string_view name) const {
    const auto value = args_.find(name);
    return value && value->is(Kind::Bool) && value->as_bool();
  }

  std::optional<uint64_t> count(std::string_view name) const {
    const auto value = args_.find(name);
    if (!value || value->is_none()) return std::nullopt;
    if (!value->is(Kind::Int) || value->as_int() < 1) {
      throw Error(ErrorCode::Corrupt, where(name), "is not a valid size");
    }
    return static_cast<uint64_t>(value->as_int());
  }

  // Buffers of GTP are those of shards.
  void refuse_above_one(std::string_view name) const {
    if (count(name).value_or(1) == 1) return;
    throw Error(
        ErrorCode::Unsupported, where(name),
        "is above 1, which is not supported of a DistributedOptimizer's flat buffers",
        "of torch_dist, --model-only --repair gtp-rows carries the weights; rank files of GTP "
        "are not read: save in torch_dist");
  }

  void refuse(std::string_view name) const {
    if (!is_set(name)) return;
    throw Error(ErrorCode::Unsupported, where(name),
                "is set, which is not supported of a DistributedOptimizer's flat buffers");
  }

 private:
  ckpt::Where where(std::string_view name) const {
    return {file_, std::nullopt, "/args/@" + std::string(name)};
  }

  const Value& args_;
  const std::string& file_;
};

}  // namespace

FlatArguments flat_arguments(const Value& args, const std::string& file) {
  const Arguments stated(args, file);
  stated.refuse_above_one("gtp_weight_remat_size");
  stated.refuse_above_one("expert_gtp_weight_remat_size");
  // Another optimizer for the first model chunk, buffers of bytes, buckets of other rules.
  for (const std::string_view name :
       {"overlap_param_gather_with_optimizer_step", "fp8_param_gather", "fp4_param_gather",
        "use_megatron_fsdp", "use_custom_fsdp"}) {
    stated.refuse(name);
  }
  FlatArguments arguments;
  arguments.buckets.overlap_grad_reduce = stated.is_set("overlap_grad_reduce");
  arguments.buckets.bucket_size = stated.count("ddp_bucket_size");
  arguments.bucket_count = stated.count("ddp_num_buckets");
  arguments.pad_for_high_nccl_busbw = stated.is_set("ddp_pad_buckets_for_high_nccl_busbw");
  return arguments;
}

FlatBuffers::FlatBuffers(const TrainingState& state, const Placement& placement,
                         const std::vector<ParamGroup>& groups, const FlatArguments& arguments)
    : state_(state),
      placement_(placement),
      groups_(groups),
      arguments_(arguments),
      groups_of_(state.params.size()) {
  for (const ParamGroup& group : groups) {
    for (const GroupedParam& param : group.params) groups_of_[param.index] = &group;
  }
}

bool FlatBuffers::has_experts(uint32_t optimizer) const {
  return std::ranges::any_of(groups_, [&](const ParamGroup& group) {
    return group.optimizer_index == optimizer && group.is_expert_parallel;
  });
}

std::string_view FlatBuffers::rule_of(uint32_t optimizer) const {
  const auto found = std::ranges::find(groups_, optimizer, &ParamGroup::optimizer_index);
  return found == groups_.end() ? std::string_view() : found->updated_by;
}

uint64_t FlatBuffers::elements_on_rank(uint32_t param) const {
  return ckpt::element_count(placement_.shape_on_rank(param));
}

// A number of buckets is one of all that the rank holds, whatever buffer it lies in.
std::optional<uint64_t> FlatBuffers::bucket_size(const RankCoordinates& rank) const {
  if (!arguments_.bucket_count) return arguments_.buckets.bucket_size;
  uint64_t elements = 0;
  for (const HeldEntry& held : placement_.held(rank.pp, rank.ep)) {
    const ModelEntry& entry = state_.model[held.entry];
    if (entry.what != ModelEntry::What::Param || is_buffer(state_, entry.name)) continue;
    elements += elements_on_rank(entry.param);
  }
  return elements / *arguments_.bucket_count;
}

uint32_t FlatBuffers::sharing_ranks(uint32_t optimizer) const {
  const RunGrid& grid = placement_.grid();
  const uint32_t ranks = has_experts(optimizer) ? grid.sizes.expt_dp() : grid.sizes.dp_cp();
  return ranks / grid.optimizer_instances;
}

// Source: _build_model_and_main_param_groups and _build_optimizer_group_ranges of
// megatron/core/optimizer/distrib_optimizer.py (d98e8a64dd): a group numbers its float32 parameters
// before all others, and the state of one is looked up by its place in the order of the buffers.
void FlatBuffers::require_own_masters_first(const std::vector<FlatBuffer>& buffers) const {
  std::set<const ParamGroup*> with_half;
  for (const FlatBuffer& buffer : buffers) {
    for (const HeldEntry& held : buffer.held) {
      const uint32_t param = state_.model[held.entry].param;
      const ParamInfo& info = state_.params[param].info;
      if (info.dtype != DType::Float32) {
        with_half.insert(groups_of_[param]);
      } else if (with_half.contains(groups_of_[param])) {
        throw Error(ErrorCode::Unsupported, {.file = {}, .key = info.name},
                    "is float32 and lies in a buffer behind that of 16-bit parameters of its "
                    "group: there Megatron's DistributedOptimizer takes the state of one parameter "
                    "for that of another when it saves and loads",
                    "--model-only carries all weights, without the optimizer's state; where the "
                    "source has no DistributedOptimizer, leave out --optimizer-sharding");
      }
    }
  }
}

std::vector<FlatBuffer> FlatBuffers::of(uint32_t optimizer, const RankCoordinates& rank,
                                        const std::set<uint32_t>& left_out) const {
  const RunGrid& grid = placement_.grid();
  struct OfType {
    DType dtype;
    std::vector<FlatParam> params = {};
    std::vector<HeldEntry> held = {};
  };
  std::vector<std::vector<OfType>> chunks(grid.pipeline.chunks_per_stage);
  bool are_mixed = false;
  for (const HeldEntry& held : placement_.held(rank.pp, rank.ep)) {
    const ModelEntry& entry = state_.model[held.entry];
    if (entry.what != ModelEntry::What::Param) continue;
    const ParamGroup* const group = groups_of_[entry.param];
    if (group == nullptr || group->optimizer_index != optimizer) continue;
    if (left_out.contains(entry.param)) continue;
    const TrainedParam& param = state_.params[entry.param];
    const bool is_shared_out = tensor_ranks(grid.sizes, placement_.is_expert(entry.param)) > 1;
    if (is_shared_out && !param.sharing.is_known) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = entry.name},
                  "it is not known how tensor-parallel ranks share it, which decides how much of "
                  "a flat buffer it takes",
                  row_for(state_, entry.name));
    }
    std::vector<OfType>& types = chunks[held.chunk];
    auto of_type = std::ranges::find(types, param.info.dtype, &OfType::dtype);
    if (of_type == types.end()) of_type = types.insert(types.end(), {param.info.dtype});
    are_mixed = are_mixed || types.size() > 1;
    // Only where stages have copies, which all-reduce them apart.
    const bool is_shared = placement_.chunks_of_entry(held.entry).size() > 1;
    of_type->params.push_back({elements_on_rank(entry.param), is_shared});
    of_type->held.push_back(held);
  }
  BucketArguments buckets = arguments_.buckets;
  buckets.bucket_size = bucket_size(rank);
  buckets.data_parallel_ranks = grid.sizes.dp_cp();
  BufferRules rules =
      distributed_optimizer_buffers(sharing_ranks(optimizer), arguments_.pad_for_high_nccl_busbw);
  std::vector<FlatBuffer> buffers;
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
    rules.bucket_elements = bucket_elements(buckets, {rank.pp, chunk});
    for (OfType& of_type : chunks[chunk]) {
      buffers.push_back({std::move(of_type.held), lay_out_flat(of_type.params, rules)});
    }
  }
  if (are_mixed) require_own_masters_first(buffers);
  return buffers;
}

void FlatBuffers::require_laid_out(uint32_t optimizer) const {
  if (!state_.unknown_order.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = state_.unknown_order},
                "it is not known at which place the model registers it, which decides whether "
                "Megatron mistakes float32 parameters among 16-bit ones",
                row_for(state_, state_.unknown_order));
  }
  for (const WorldRank& rank : ranks_of(placement_.grid())) {
    if (writes(optimizer, rank.at)) of(optimizer, rank.at);
  }
}

// Source: DistributedOptimizer._build_model_gbuf_range of megatron/core/optimizer.
ElementRange own_part(const FlatBucket& bucket, uint32_t rank, uint32_t rank_count) {
  const uint64_t part = (bucket.range.end - bucket.range.begin) / rank_count;
  const uint64_t begin = bucket.range.begin + rank * part;
  return {begin, begin + part};
}

const std::vector<FlatShares::Buffer>& FlatShares::held_by(const Holders& holders,
                                                           const RankCoordinates& rank) {
  const auto [known, is_new] = known_.try_emplace(holders);
  if (!is_new) return known->second;
  for (FlatBuffer& laid_out : buffers_.of(std::get<0>(holders), rank)) {
    Buffer& buffer = known->second.emplace_back(Buffer{std::move(laid_out), {}});
    const std::vector<FlatPlace>& places = buffer.laid_out.layout.places;
    buffer.order.resize(places.size());
    std::iota(buffer.order.begin(), buffer.order.end(), 0u);
    std::ranges::sort(buffer.order, {}, [&](uint32_t place) { return places[place].range.begin; });
  }
  return known->second;
}

void FlatShares::add(const Buffer& buffer, ElementRange own, std::vector<FlatShare>& shares) const {
  const std::vector<FlatPlace>& places = buffer.laid_out.layout.places;
  auto at = std::ranges::upper_bound(buffer.order, own.begin, {},
                                     [&](uint32_t place) { return places[place].range.end; });
  for (; at != buffer.order.end() && places[*at].range.begin < own.end; ++at) {
    const ElementRange& whole = places[*at].range;
    const uint64_t begin = std::max(own.begin, whole.begin), end = std::min(own.end, whole.end);
    if (begin >= end) continue;
    shares.push_back({state_.model[buffer.laid_out.held[*at].entry].param,
                      {begin - whole.begin, end - whole.begin}});
  }
}

std::vector<FlatShare> FlatShares::of(uint32_t optimizer, const RankCoordinates& rank) {
  const uint32_t number = buffers_.number_among_sharing(optimizer, rank);
  const uint32_t rank_count = buffers_.sharing_ranks(optimizer);
  std::vector<FlatShare> shares;
  for (const Buffer& buffer : held_by({optimizer, rank.pp, rank.ep}, rank)) {
    for (const FlatBucket& bucket : buffer.laid_out.layout.buckets) {
      add(buffer, own_part(bucket, number, rank_count), shares);
    }
  }
  std::ranges::stable_sort(shares, {}, &FlatShare::param);
  return shares;
}

}  // namespace optim

#include <optim/distributed_optimizer.h>

#include <optim/layer_wise_optimizer.h>
#include <optim/rule_table.h>
#include <map>
#include <string>
#include <utility>

#include "rules/refuse_key.h"
#include "step/element_ranges/range_sharding.h"
#include "step/layer_wise/layer_wise_sharding.h"
#include "step/layer_wise/matrix_splits.h"

namespace optim {
namespace {

constexpr const char* kField = "use_distributed_optimizer";

void check_param(const Param& param) {
  const std::string& name = param.info.name;
  if (!param.param.defined()) {
    refuse_key(name, "the parameter has no tensor");
  }
  if (!param.param.device().is_cpu()) {
    refuse_key(kField,
               "ranges of parameters on a GPU are not stepped; the layer-wise optimizer's are",
               ckpt::ErrorCode::Unsupported);
  }
  if (!param.param.is_contiguous()) {
    refuse_key(name, "the parameter must be contiguous");
  }
}

void check_rule(const OptimizerGroup& group) {
  const RuleDescription& rule = rule_named(group.rule_config.name());
  if (rule.by_element) return;
  refuse_key(kField, "ranges of elements cannot be updated by '" + std::string(rule.name) + "'",
             ckpt::ErrorCode::Unsupported);
}

// Its range of each parameter, with views of the model's tensors; groups may become empty.
void keep_ranges(std::vector<OptimizerGroup>& groups, RangeSharding& sharding) {
  for (OptimizerGroup& group : groups) {
    for (OptimizedParam& whole : std::exchange(group.params, {})) {
      const ElementPiece* const piece = sharding.own_piece(whole.id);
      if (piece == nullptr) continue;
      OptimizedParam range;
      range.id = whole.id;
      range.model.info = whole.model.info;
      range.model.info.shape = {piece->count};
      range.model.param = piece->of(whole.model.param);
      range.first_element = piece->begin;
      range.whole_count = whole.model.param.numel();
      range.is_duplicate = sharding.is_duplicate[whole.id];
      group.params.push_back(std::move(range));
    }
  }
}

// What check_same_model() compares; owners stand for the ranges.
Ownership ownership_of(const RangeSharding& sharding, std::vector<uint32_t> group_of_id) {
  Ownership ownership;
  ownership.is_expert = sharding.is_expert;
  ownership.group_of = std::move(group_of_id);
  for (uint32_t id = 0; id < sharding.params.size(); ++id) {
    const SharingGroup& group = sharding.is_expert[id] ? sharding.experts : sharding.dense;
    uint64_t digest = 14695981039346656037U;  // FNV-1a
    for (const ElementPiece& piece : group.pieces_of(id)) {
      for (const int64_t number : {int64_t{piece.owner}, piece.begin, piece.count}) {
        digest = (digest ^ static_cast<uint64_t>(number)) * 1099511628211U;
      }
    }
    ownership.owner.push_back(static_cast<uint32_t>(digest ^ digest >> 32U));
  }
  return ownership;
}

LayerWiseOptions compared_options(const DistributedOptimizerOptions& options) {
  LayerWiseOptions compared;
  compared.gather_bucket_bytes = options.gather_bucket_bytes;
  compared.is_in_first_model_chunk = options.is_in_first_model_chunk;
  return compared;
}

// By the address of the tensor.
using PlacesInModel = std::map<const void*, uint32_t>;

PlacesInModel places_in_model(const std::vector<Param>& params) {
  PlacesInModel places;
  for (const Param& param : params) {
    const auto place = static_cast<uint32_t>(places.size());
    if (places.emplace(param.param.unsafeGetTensorImpl(), place).second) continue;
    refuse_key(param.info.name, "the tensor is given twice");
  }
  return places;
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(OptimizerConfig config, std::vector<Param> params,
                                           DistributedOptimizerOptions options)
    : ChainedOptimizer({}, std::move(config)) {
  this->config().validate();
  if (!this->config().use_distributed_optimizer) {
    refuse_key(kField, "is not set");
  }
  const ProcessGroupCollection& groups = options.groups;
  check_groups(groups, compared_options(options));
  for (const Param& param : params) check_param(param);
  write_config(this->config(), groups);
  sharding_ = std::make_unique<RangeSharding>(
      RangeSharding{.dense = {Collectives(groups.dp_cp)},
                    .experts = {Collectives(groups.expt_dp)},
                    .stats = Collectives(groups.world ? groups.world : groups.dp_cp),
                    .options = options});
  RangeSharding& sharding = *sharding_;
  sharding.experts.collectives.share_failures_with(sharding.dense.collectives);
  sharding.stats.share_failures_with(sharding.dense.collectives);
  StepInside::of(*this).peers = make_peers(*this, sharding);
  cut_params(std::move(params));
  bind_grads({});
}

// Ids are those of grouping, places in buffers those of the model.
void DistributedOptimizer::cut_params(std::vector<Param> params) {
  RangeSharding& sharding = *sharding_;
  const PlacesInModel places = places_in_model(params);
  const GroupingOptions grouping = grouping_options(
      config(), params,
      {.overrides = sharding.options.overrides, .groups = sharding.options.groups});
  auto chain = make_optimizer_groups(std::move(params), config(), grouping);
  std::vector<uint32_t> group_of_id;
  std::map<uint32_t, uint32_t> id_by_place;  // frozen parameters have none
  for (auto& of_optimizer : chain) {
    for (OptimizerGroup& group : of_optimizer) {
      check_rule(group);
      for (const OptimizedParam& param : group.params) {
        sharding.params.push_back(param.model);
        sharding.is_expert.push_back(group.settings.is_expert_parallel);
        sharding.is_duplicate.push_back(is_duplicate(param.model.info, sharding.options.groups));
        id_by_place[places.at(param.model.param.unsafeGetTensorImpl())] = param.id;
        group_of_id.push_back(static_cast<uint32_t>(sharding.group_sizes.size()));
      }
      sharding.group_sizes.push_back(static_cast<uint32_t>(group.params.size()));
    }
  }
  for (const auto& [place, id] : id_by_place) sharding.registered.push_back(id);
  cut_into_ranges(sharding);
  for (auto& of_optimizer : chain) {
    keep_ranges(of_optimizer, sharding);
    chained_optimizers_.push_back(make_group_optimizer(std::move(of_optimizer), config()));
  }
  const Ownership ownership = ownership_of(sharding, std::move(group_of_id));
  check_same_model(
      {sharding.params, ownership, config(), compared_options(sharding.options), param_groups()},
      sharding.dense.collectives, sharding.experts.collectives);
}

DistributedOptimizer::~DistributedOptimizer() = default;

const std::vector<Param>& DistributedOptimizer::all_params() const { return sharding_->params; }

DistributedOptimizer::OwnRange DistributedOptimizer::own_range(uint32_t id) const {
  if (id >= sharding_->params.size()) {
    refuse_key("id", "there is no such parameter");
  }
  const ElementPiece* const piece = sharding_->own_piece(id);
  return piece == nullptr ? OwnRange() : OwnRange{piece->begin, piece->count};
}

}  // namespace optim

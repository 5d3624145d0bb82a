// Replays Megatron's deal over what rank files number.
#include "layouts/torch/torch_optimizers.h"

#include <algorithm>
#include <span>

#include "grid/sharing_of_params.h"
#include "layouts/job/tensor_attributes.h"
#include "state/remainders.h"
#include "state/value_compare.h"
#include "state/words.h"

namespace optim {
namespace {

TorchOptimizers::RankState at(const TorchOptimizers::RankState& state, const Value& value,
                              const Place& place) {
  return {state.rank, state.document, value, place};
}

void check_index(const Value& index, size_t expected, const Place& place) {
  if (index.is(Kind::Int) && index.as_int() == static_cast<int64_t>(expected)) return;
  (place / "params").corrupt("does not continue the numbering of the group before");
}

// How often an optimizer has stepped, as torch rank files say it of each parameter.
constexpr const char* kDiffers = "its step count differs from that of the parameters before";

bool counts_per_param(StepLayout layout) {
  return layout == StepLayout::PerParam || layout == StepLayout::PerParamNumber;
}

}  // namespace

TorchOptimizers::TorchOptimizers(const TorchSource& source, const RankDeals& deals, Into into)
    : source_(source),
      deals_(deals),
      into_(into),
      rank_items_(equal_items_of(source.checkpoint)),
      groups_(into.common, into.state) {}

void TorchOptimizers::read(const RankState& state) {
  const RankOptimizers rank = optimizers_of(state.value, state.place);
  if (rank.states.size() != into_.state.chain.size()) {
    state.place.corrupt("holds " + std::to_string(rank.states.size()) + " optimizers, expected " +
                        std::to_string(into_.state.chain.size()));
  }
  const OwnedGroups owned = deals_.owned(state.rank.at);
  const std::vector<ParamGroup>& groups = deals_.groups();
  size_t group = 0;
  for (uint32_t i = 0; i < rank.states.size(); ++i) {
    Groups own;
    for (; group < groups.size() && groups[group].optimizer_index == i; ++group) {
      own.push_back(owned[group]);
    }
    read_optimizer(at(state, rank.states[i], rank.places[i]), i, own);
  }
}

void TorchOptimizers::read_optimizer(const RankState& state, uint32_t optimizer,
                                     const Groups& owned) {
  const Value inner = member(state.value, "optimizer", state.place);
  const Place inner_place = state.place / "optimizer";
  const Value groups = list_member(inner, "param_groups", inner_place);
  const Value masters = list_member(state.value, "fp32_from_fp16_params", state.place);
  const Value states = member(inner, "state", inner_place);
  if (groups.size() != owned.size() || masters.size() != owned.size()) {
    inner_place.corrupt("holds " + std::to_string(groups.size()) + " parameter groups, expected " +
                        std::to_string(owned.size()));
  }
  size_t local_index = 0;
  for (size_t g = 0; g < owned.size(); ++g) {
    const Place group_place = inner_place / "param_groups" / g;
    check_group_counts(groups[g], masters[g], owned[g], group_place);
    size_t master = 0;
    for (size_t i = 0; i < owned[g].size(); ++i, ++local_index) {
      const uint32_t param = param_of(owned[g][i]);
      check_index(groups[g].at("params")[i], local_index, group_place);
      if (has_master(param)) {
        read_master(at(state, masters[g][master], {}), param,
                    state.place / "fp32_from_fp16_params" / g / master);
        ++master;
      }
      const Place place = inner_place / "state" / local_index;
      const auto own =
          states.is(Kind::Dict) ? states.find(static_cast<int64_t>(local_index)) : std::nullopt;
      if (own && own->is(Kind::Dict)) {
        read_states(at(state, *own, place), param, place);
      } else if (!absent_) {
        absent_ = Absent{place, param};
      }
    }
    groups_.add({optimizer, g},
                {groups[g], state.document, group_place, rank_name(group_place.file)});
  }
  if (states.item_count() != local_index && !absent_) {
    (inner_place / "state")
        .corrupt("holds the state of " + std::to_string(states.item_count()) +
                 " parameters, but the groups have " + std::to_string(local_index));
  }
  const uint32_t rank = state.rank.rank;
  rank_items_.add({rank, optimizer, false, state.document, state.value, state.place},
                  {"optimizer", "fp32_from_fp16_params"});
  rank_items_.add({rank, optimizer, true, state.document, inner, inner_place},
                  {"state", "param_groups"});
}

std::string TorchOptimizers::rule_of_owners() const {
  return deals_.is_dealt() ? "the ping-pong deal" : "the order of the model";
}

bool TorchOptimizers::has_master(uint32_t param) const {
  return !is_own_master(into_.state.params[param].info.dtype);
}

void TorchOptimizers::check_group_counts(const Value& group, const Value& masters,
                                         const std::vector<HeldEntry>& owned,
                                         const Place& place) const {
  const Value params = list_member(group, "params", place);
  if (!masters.is(Kind::List)) place.corrupt("its fp32_from_fp16_params are not a list");
  const auto with_master = static_cast<size_t>(std::ranges::count_if(
      owned, [this](const HeldEntry& held) { return has_master(param_of(held)); }));
  if (params.size() == owned.size() && masters.size() == with_master) return;
  for (const TrainedParam& param : into_.state.params) {
    if (rules_of(into_.state).find(param.info.name)) continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                "is not a parameter that the model rules know, and the groups of the rank "
                "files do not fit what its name says",
                row_for(into_.state, param.info.name));
  }
  place.corrupt("holds " + std::to_string(params.size()) + " parameters and " +
                    std::to_string(masters.size()) + " masters, but " + rule_of_owners() +
                    " assigns it " + std::to_string(owned.size()) +
                    (with_master == owned.size()
                         ? std::string()
                         : ", " + std::to_string(with_master) + " of them not float32"),
                kMixedFilesHint);
}

void TorchOptimizers::read_master(const RankState& state, uint32_t param, const Place& place) {
  const TensorEntry& tensor = source_.tensor_at(place);
  if (tensor.dtype != DType::Float32) place.unsupported("the master is not float32");
  check_shape(tensor, param, place);
  add_tensor(state, param, std::string(kMasterState), place);
}

// Under its canonical key. What the first of several ranks says of it is carried.
void TorchOptimizers::add_tensor(const RankState& state, uint32_t param, const std::string& name,
                                 const Place& place) {
  const ParamInfo& info = into_.state.params[param].info;
  const std::string key = state_key(name, info.name);
  const bool is_first = into_.parts.first(key) == nullptr;
  const uint32_t tensor_rank = state.rank.at.tensor_rank(deals_.placement().is_expert(param));
  into_.parts.add(key, tensor_rank, source_.tensor_at(place));
  if (is_first) note_attributes({key, state.value, state.document}, into_.common, into_.state);
}

void TorchOptimizers::check_shape(const TensorEntry& tensor, uint32_t param,
                                  const Place& place) const {
  const TrainedParam& of = into_.state.params[param];
  if (tensor.shape == of.weight->shape) return;
  place.corrupt("has a different shape from '" + ckpt::escaped(of.info.name) + "', which " +
                    rule_of_owners() + " assigns to this place",
                kMixedFilesHint);
}

void TorchOptimizers::read_states(const RankState& state, uint32_t param, const Place& place) {
  std::vector<std::string> names;
  for (const auto& [key, value] : ckpt::items_of(state.value)) {
    if (!key.is(Kind::Str)) place.corrupt("the name of a state is not a string");
    names.emplace_back(key.text());
    read_state(at(state, value, place), param, names.back(), place / key.text());
  }
  std::erase(names, "step");
  std::vector<StateTensor>& known = into_.state.params[param].states;
  if (read_.insert(param).second) {
    for (const std::string& name : names) known.push_back({name, nullptr});
  }
  if (std::ranges::equal(known, names, {}, &StateTensor::name)) return;
  std::string difference;
  for (const StateTensor& kept : known) {
    const bool is_there = std::ranges::find(names, kept.name) != names.end();
    if (!is_there) difference = ": '" + ckpt::escaped(kept.name) + "' is missing";
  }
  for (const std::string& name : names) {
    const bool is_known = std::ranges::find(known, name, &StateTensor::name) != known.end();
    if (!is_known) difference = ": there '" + ckpt::escaped(name) + "' is missing";
  }
  place.corrupt("holds other states than other ranks hold of '" +
                    ckpt::escaped(into_.state.params[param].info.name) + "'" + difference,
                kMixedFilesHint);
}

void TorchOptimizers::read_state(const RankState& state, uint32_t param, const std::string& name,
                                 const Place& place) {
  TrainedParam& owner = into_.state.params[param];
  const StepCounter::Counted counted{param, into_.state};
  if (!ckpt::as_tensor(state.value)) {
    if (name == "step" && state.value.is(Kind::Int)) {
      return steps_.add(state.value.as_int(), place, counted);
    }
    place.unsupported("is a state that is not a tensor; expected tensors and a step count");
  }
  const TensorEntry& tensor = source_.tensor_at(place);
  if (name == "step") {
    note_what_a_step_loses({state_key(name, owner.info.name), state.value, state.document},
                           into_.state);
    return steps_.add(source_.checkpoint, tensor, place, counted);
  }
  const auto& of_param = owner.weight->shape;
  if (const auto expected = shape_of_state(name, of_param); expected && tensor.shape != *expected) {
    if (*expected == of_param) check_shape(tensor, param, place);
    place.corrupt(
        "does not have the shape that this state of '" + ckpt::escaped(owner.info.name) + "' has",
        kMixedFilesHint);
  }
  if (!is_state_dtype(tensor.dtype)) place.unsupported("optimizer state of integers");
  add_tensor(state, param, name, place);
}

void TorchOptimizers::finish() {
  rank_items_.settle(into_.common, into_.state);
  steps_.finish(into_.common, into_.state);
}

// torch_dist has one count for all.
void StepCounter::add(const OpenedTraining& source, const TensorEntry& tensor, const Place& place,
                      const Counted& counted) {
  if (!tensor.shape.empty()) place.corrupt("a step count is not a single number");
  params_.insert(counted.param);
  std::string bytes(ckpt::count_bytes(tensor), '\0');
  source.read(tensor, ckpt::whole(tensor.shape), std::as_writable_bytes(std::span(bytes)));
  auto& owner = counted.state.chain[counted.state.params[counted.param].optimizer];
  if (owner.step_layout == StepLayout::None) {
    owner.step_layout = StepLayout::PerParam;
    owner.step_dtype = tensor.dtype;
    owner.step_bytes = bytes;
  } else if (owner.step_layout != StepLayout::PerParam || owner.step_bytes != bytes ||
             owner.step_dtype != tensor.dtype) {
    place.unsupported(kDiffers);
  }
}

void StepCounter::add(int64_t step, const Place& place, const Counted& counted) {
  params_.insert(counted.param);
  auto& owner = counted.state.chain[counted.state.params[counted.param].optimizer];
  if (owner.step_layout == StepLayout::None) {
    owner.step_layout = StepLayout::PerParamNumber;
    owner.step_number = step;
  } else if (owner.step_layout != StepLayout::PerParamNumber || owner.step_number != step) {
    place.unsupported(kDiffers);
  }
}

void StepCounter::finish(CommonBuilder& common, TrainingState& state) const {
  for (uint32_t i = 0; i < state.params.size(); ++i) {
    const TrainedParam& param = state.params[i];
    const bool counts = counts_per_param(state.chain[param.optimizer].step_layout);
    if (!counts || !param.info.requires_grad || params_.contains(i)) continue;
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = state_key("step", param.info.name)},
                "is missing, although other parameters of its optimizer have a step count");
  }
  for (ChainedOptimizerState& optimizer : state.chain) {
    const bool in_group = std::ranges::any_of(optimizer.groups, [&](NodeId group) {
      return common.tree().value(group).find("step").has_value();
    });
    if (in_group && counts_per_param(optimizer.step_layout)) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = "step"},
                  "is in a group and in the states of parameters; expected in one of them");
    }
    if (in_group) optimizer.step_layout = StepLayout::PerGroup;
  }
}

}  // namespace optim

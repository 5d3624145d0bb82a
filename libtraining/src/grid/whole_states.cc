#include "grid/whole_states.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <optim/rule_table.h>

#include "grid/build_state.h"
#include "grid/target_groups.h"
#include "state/remainders.h"

namespace optim {
namespace {

template <class Number>
std::optional<Number> number_of_bytes(const std::string& bytes) {
  Number number;
  if (bytes.size() != sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// What item() of the tensor gives.
ckpt::NodeId add_step(ckpt::ValueTree& tree, const ChainedOptimizerState& optimizer) {
  if (optimizer.step_layout == StepLayout::PerParamNumber) {
    return tree.integer(optimizer.step_number);
  }
  const std::string& bytes = optimizer.step_bytes;
  switch (optimizer.step_dtype) {
    case ckpt::DType::Float32: return tree.real(number_of_bytes<float>(bytes).value_or(0));
    case ckpt::DType::Float64: return tree.real(number_of_bytes<double>(bytes).value_or(0));
    case ckpt::DType::Int32: return tree.integer(number_of_bytes<int32_t>(bytes).value_or(0));
    case ckpt::DType::Int64: return tree.integer(number_of_bytes<int64_t>(bytes).value_or(0));
    default:
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "step"},
                        "a step count of type " + std::string(ckpt::name(optimizer.step_dtype)));
  }
}

// A group of an optimizer's.
using GroupPlace = std::pair<uint32_t, uint32_t>;

GroupPlace place_of(const TrainedParam& param) { return {param.optimizer, param.group}; }

bool is_trained(const TrainedParam& param) {
  return param.info.requires_grad && (param.master || !param.states.empty());
}

bool has_state(const TrainedParam& param, std::string_view name) {
  return std::ranges::find(param.states, name, &StateTensor::name) != param.states.end();
}

// The rule of each group that has parameters.
std::map<GroupPlace, std::string> rules_of_groups(const FiledState& state) {
  std::map<GroupPlace, std::string> rules;
  std::vector<GroupPlace> places;  // of the groups that follow
  for (const TrainedParam& param : state.params) {
    if (!param.info.requires_grad) continue;
    if (rules.try_emplace(place_of(param)).second) places.push_back(place_of(param));
  }
  for (const ParamGroup& group : groups_in_brief(state)) {
    for (const GroupedParam& grouped : group.params) {
      if (grouped.index < places.size()) rules[places[grouped.index]] = group.updated_by;
    }
  }
  return rules;
}

// As the group states it: SGD keeps no momentum where that is 0.
RuleConfig config_of(const RuleDescription& rule, std::optional<double> momentum) {
  RuleConfig config = rule.defaults();
  if (!momentum) return config;
  for (const Setting& setting : settings_of(config)) {
    auto* const number = std::get_if<double*>(&setting.place);
    if (number != nullptr && setting.field == "momentum") **number = *momentum;
  }
  return config;
}

std::vector<std::string_view> kept_by(const RuleDescription& rule, std::optional<double> momentum) {
  constexpr int64_t kMatrix[] = {1, 1};
  std::vector<std::string_view> kept;
  for (const StateSpec& state : rule.states(config_of(rule, momentum), ParamShape(kMatrix))) {
    if (!state.own_shape) kept.push_back(state.name);  // others depend on settings
  }
  return kept;
}

// What parameters must have.
class KeptStates {
 public:
  explicit KeptStates(const FiledState& state) : state_(state), rules_(rules_of_groups(state)) {
    for (const auto& [place, rule] : rules_) {
      std::set<std::string, std::less<>>& kept = kept_[{place.first, rule}];
      const RuleDescription* const row = find_rule(rule);
      if (row == nullptr) continue;
      for (const std::string_view name : kept_by(*row, momentum_of(place))) kept.emplace(name);
    }
    for (const TrainedParam& param : state.params) {
      if (!is_trained(param)) continue;
      std::set<std::string, std::less<>>& kept = kept_[key_of(param)];
      for (const StateTensor& tensor : param.states) {
        if (!kept.contains(tensor.name) && is_of_all(tensor.name, param)) kept.insert(tensor.name);
      }
    }
  }

  const std::string& rule_of(const TrainedParam& param) const { return rules_.at(place_of(param)); }

  bool keeps_any(const TrainedParam& param) const { return !kept_.at(key_of(param)).empty(); }

  // The first in the order of names; nullptr: none.
  const std::string* missing(const TrainedParam& param) const {
    for (const std::string& state : kept_.at(key_of(param))) {
      if (!has_state(param, state)) return &state;
    }
    return nullptr;
  }

 private:
  // A store and flat buffers have the same states of all parameters; rank files may have more of
  // one. Remainders are of 16-bit weights alone.
  bool is_of_all(const std::string& state, const TrainedParam& param) const {
    if (state == kRemainderState) return false;
    const FiledAs& filed = state_.filed;
    const bool is_dict = filed.container == ckpt::Format::Torch &&
                         !filed.optimizers.at(param.optimizer)->by_elements;
    const RuleDescription* const rule = is_dict ? find_rule(rule_of(param)) : nullptr;
    if (rule == nullptr) return !is_dict;
    constexpr int64_t kMatrix[] = {1, 1};
    const auto states = rule->states(rule->defaults(), ParamShape(kMatrix));
    return std::ranges::find(states, state, &StateSpec::name) != states.end();
  }

  using Key = std::pair<uint32_t, std::string>;  // optimizer, rule
  Key key_of(const TrainedParam& param) const { return {param.optimizer, rule_of(param)}; }

  std::optional<double> momentum_of(const GroupPlace& place) const {
    const std::vector<ckpt::NodeId>& groups = state_.chain.at(place.first).groups;
    if (place.second >= groups.size()) return std::nullopt;
    return number_in(state_.common.tree.value(groups[place.second]), "momentum");
  }

  const FiledState& state_;
  std::map<GroupPlace, std::string> rules_;
  std::map<Key, std::set<std::string, std::less<>>> kept_;
};

std::string file_of(const TrainedParam& param, const ckpt::Checkpoint& source) {
  const TensorRef& tensor = param.states.empty() ? param.master : param.states.front().value;
  return tensor->chunks.empty() ? std::string() : source.file_name(tensor->chunks[0].region.file);
}

[[noreturn]] void refuse(const FiledState& state, const TrainedParam& param,
                         const std::string& missing, const ckpt::Checkpoint& source) {
  const bool is_of_any = std::ranges::any_of(state.params, [&](const TrainedParam& other) {
    return other.optimizer == param.optimizer && has_state(other, missing);
  });
  const auto name_of = [](const StateTensor& kept) { return ckpt::escaped(kept.name); };
  const std::string whose = is_of_any ? "" : "no parameter of this optimizer has it; ";
  throw ckpt::Error(ckpt::ErrorCode::Corrupt,
                    {file_of(param, source), std::nullopt, state_key(missing, param.info.name)},
                    "is missing, which the optimizer keeps: " + whose +
                        "of this parameter there is " + ckpt::joined(param.states, ", ", name_of),
                    "the file was changed or is not complete; --model-only carries the weights");
}

}  // namespace

void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer) {
  const bool is_per_param = optimizer.step_layout == StepLayout::PerParam ||
                            optimizer.step_layout == StepLayout::PerParamNumber;
  if (!is_per_param) return;
  for (const ckpt::NodeId group : optimizer.groups) {
    tree.put(group, "step", add_step(tree, optimizer));
  }
  optimizer.step_layout = StepLayout::PerGroup;
}

std::optional<double> step_number(ckpt::DType dtype, const std::string& bytes) {
  switch (dtype) {
    case ckpt::DType::Float32: return number_of_bytes<float>(bytes);
    case ckpt::DType::Float64: return number_of_bytes<double>(bytes);
    case ckpt::DType::Int32: return number_of_bytes<int32_t>(bytes);
    case ckpt::DType::Int64: return number_of_bytes<int64_t>(bytes);
    default: return std::nullopt;
  }
}

std::optional<double> step_of(const FiledState& state, uint32_t optimizer) {
  const ChainedOptimizerState& of = state.chain.at(optimizer);
  if (of.step_layout == StepLayout::PerParamNumber) return static_cast<double>(of.step_number);
  if (of.step_layout == StepLayout::PerParam) return step_number(of.step_dtype, of.step_bytes);
  for (const ckpt::NodeId group : of.groups) {
    if (const auto step = number_in(state.common.tree.value(group), "step")) return step;
  }
  return std::nullopt;
}

Stepped has_stepped(const FiledState& state, uint32_t optimizer) {
  std::optional<double> step;
  if (optimizer < state.chain.size()) step = step_of(state, optimizer);
  for (uint32_t i = 0; !step && i < state.chain.size(); ++i) step = step_of(state, i);
  if (!step) {
    const auto iteration = number_in(state.common.tree.root(), "iteration");
    return iteration && *iteration == 0 ? Stepped::Never : Stepped::Unknown;
  }
  return *step > 0 ? Stepped::Yes : Stepped::Never;
}

void require_whole_states(const FiledState& state, const ckpt::Checkpoint& source) {
  if (state.chain.empty()) return;
  const KeptStates kept(state);
  for (const TrainedParam& param : state.params) {
    if (!is_trained(param) || param.states.empty()) continue;
    const std::string* const missing = kept.missing(param);
    if (missing != nullptr) refuse(state, param, *missing, source);
  }
}

StatelessParams find_stateless(const FiledState& state) {
  StatelessParams found;
  const auto has_none = [](const TrainedParam& param) {
    return is_trained(param) && param.states.empty();
  };
  if (state.chain.empty() || std::ranges::none_of(state.params, has_none)) return found;
  const KeptStates kept(state);
  for (uint32_t i = 0; i < state.params.size(); ++i) {
    const TrainedParam& param = state.params[i];
    if (!has_none(param) || !kept.keeps_any(param)) continue;
    const bool is_new = has_stepped(state, param.optimizer) == Stepped::Never;
    (is_new ? found.never_stepped : found.unexplained).push_back(i);
  }
  return found;
}

std::string why_unexplained(const FiledState& state, const TrainedParam& param) {
  const std::optional<double> step = step_of(state, param.optimizer);
  std::string steps = "nothing says that its optimizer has taken no step";
  if (step) {
    steps = "its optimizer has taken " + std::to_string(static_cast<int64_t>(*step)) + " steps";
  } else if (has_stepped(state, param.optimizer) == Stepped::Yes) {
    steps = "the others of the chain have taken steps";
  }
  return "it has a master and no optimizer state, and " + steps;
}

std::vector<std::string_view> states_kept_by(std::string_view rule) {
  const RuleDescription* const row = find_rule(rule);
  return row == nullptr ? std::vector<std::string_view>() : kept_by(*row, std::nullopt);
}

std::vector<uint32_t> find_uncounted(const FiledState& state) {
  std::set<uint32_t> uncounted;
  if (state.chain.empty()) return {};
  const KeptStates kept(state);
  for (const TrainedParam& param : state.params) {
    if (!is_trained(param) || uncounted.contains(param.optimizer)) continue;
    const RuleDescription* const rule = find_rule(kept.rule_of(param));
    if (rule == nullptr || rule->step_count == nullptr || param.states.empty()) continue;
    const bool is_new = has_stepped(state, param.optimizer) == Stepped::Never;
    if (!is_new && !step_of(state, param.optimizer)) uncounted.insert(param.optimizer);
  }
  return {uncounted.begin(), uncounted.end()};
}

}  // namespace optim

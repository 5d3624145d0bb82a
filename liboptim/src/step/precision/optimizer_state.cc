#include "step/precision/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <optim/checkpoint_bridge.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <utility>

#include "rules/refuse_key.h"
#include "rules/rows.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

template <class... Types>
StateValue as_state(const std::variant<Types...>& value) {
  return std::visit([](const auto& content) { return StateValue(content); }, value);
}

StateValue optional_number(const std::optional<double>& value) {
  return value ? StateValue(*value) : StateValue();
}

// The settings that a field holds: one value, or a list of several (betas).
StateValue settings_value(const std::vector<Setting>& settings, std::string_view field) {
  StateList values;
  for (const Setting& setting : settings) {
    if (setting.field == field) values.push_back(as_state(rows::value_of(setting.place)));
  }
  return values.size() == 1 ? values.front() : StateValue(std::move(values));
}

void put_rule_fields(StateDict& fields, const OptimizerGroup& group) {
  RuleConfig config = group.rule_config;
  const std::vector<Setting> settings = settings_of(config);
  for (const GroupField& field : rule_named(config.name()).fields(config)) {
    const std::string name(field.name);
    switch (field.content) {
      case GroupField::Content::Settings:
        put(fields, name, settings_value(settings, field.name));
        break;
      case GroupField::Content::WeightDecay: put(fields, name, group.weight_decay); break;
      case GroupField::Content::Step:
        if (!group.params.empty()) put(fields, name, group.params.front().step);
        break;
      case GroupField::Content::False: put(fields, name, false); break;
      case GroupField::Content::True: put(fields, name, true); break;
      case GroupField::Content::Zero: put(fields, name, int64_t{0}); break;
      case GroupField::Content::None: put(fields, name, StateValue()); break;
    }
  }
}

StateDict param_state(const OptimizerGroup& group, const OptimizedParam& param) {
  StateDict state;
  switch (step_count_of(group.rule_config)) {
    case StepCount::Tensor:
      put(state, "step", handle_of(at::full({}, static_cast<double>(param.step), at::kFloat)));
      break;
    case StepCount::Number: put(state, "step", param.step); break;
    case StepCount::None:
    case StepCount::PerGroup: break;
  }
  const ParamState values = state_of(param);
  for (const std::string_view name : group.rule->state_names()) {
    const auto found = values.find(std::string(name));
    if (found != values.end()) put(state, std::string(name), handle_of(found->second));
  }
  return state;
}

// NeMo's checkpoints have "pre_wd_mult" for "wd_mult"; the reference takes either.
double identity_field(const StateDict& saved, const std::string& field) {
  const StateValue* const renamed = find(saved, "pre_" + field);
  const bool has_own = find(saved, field) != nullptr;
  return number(renamed != nullptr && !has_own ? *renamed : at(saved, field, "param_groups"),
                field);
}

bool same_identity(const ParamGroup& ours, const StateDict& saved) {
  return identity_field(saved, "wd_mult") == ours.wd_mult &&
         identity_field(saved, "lr_mult") == ours.lr_mult &&
         (identity_field(saved, "is_expert_parallel") != 0) == ours.is_expert_parallel &&
         (identity_field(saved, "is_decoupled_lr") != 0) == ours.is_decoupled_lr;
}

// The reference matches by these four fields; groups that agree in them are taken in order.
std::vector<size_t> match_groups(const std::vector<OptimizerGroup>& groups,
                                 const StateList& saved) {
  if (saved.size() != groups.size()) {
    refuse_key("param_groups", "has " + std::to_string(saved.size()) + " groups, expected " +
                                   std::to_string(groups.size()));
  }
  std::vector<size_t> match;
  std::vector<bool> taken(saved.size(), false);
  for (const OptimizerGroup& group : groups) {
    size_t i = 0;
    while (i < saved.size() &&
           (taken[i] || !same_identity(group.settings, as_dict(saved[i], "param_groups")))) {
      ++i;
    }
    if (i == saved.size()) refuse_key("param_groups", "a group of the optimizer is missing");
    taken[i] = true;
    match.push_back(i);
  }
  return match;
}

// Options of torch's optimizers that would change the result, and that the rules do not have.
void check_options(const OptimizerGroup& group, const StateDict& saved) {
  std::vector<std::string_view> options = {"amsgrad", "maximize", "dampening"};
  const auto& own = rule_named(group.rule_config.name()).unsupported_options;
  options.insert(options.end(), own.begin(), own.end());
  for (const std::string_view option : options) {
    const std::string name(option);
    const StateValue* const value = find(saved, name);
    if (value != nullptr && number(*value, name) != 0) {
      refuse_key(name, "is set, but this optimizer does not support it");
    }
  }
}

// A state that the rule does not keep would be lost.
void check_state_names(const UpdateRule& rule, const StateDict& state, const std::string& path) {
  const std::span<const std::string_view> known = rule.state_names();
  for (const auto& [key, value] : state) {
    const auto* const name = std::get_if<std::string>(&key);
    const bool is_empty = value.get_if<std::monostate>() != nullptr;
    if (is_empty || (name != nullptr && *name == "step")) continue;
    if (name == nullptr || std::ranges::find(known, *name) == known.end()) {
      refuse_key(path + "/" + (name != nullptr ? *name : std::to_string(std::get<int64_t>(key))),
                 "is not a state of this optimizer");
    }
  }
}

// The numbers of a rule that groups hold; switches stay as they were constructed, as in the
// reference, whose groups do not have them.
void load_setting(const Setting& setting, RuleConfig& config, const StateDict& saved) {
  auto* const* const place = std::get_if<double*>(&setting.place);
  if (setting.field.empty() || place == nullptr) return;
  const std::string field(setting.field);
  const StateValue& value = at(saved, field, "param_groups");
  if (setting.field == setting.name) {
    **place = number(value, field);
    return;
  }
  const auto [index, count] = rows::place_in_list(setting, settings_of(config));
  const StateList& list = as_list(value, field);
  if (list.size() != count) {
    refuse_key(field, "does not hold " + std::to_string(count) + " numbers");
  }
  **place = number(list[index], field);
}

void load_rule(OptimizerGroup& group, const StateDict& saved, StateLoad& load) {
  check_options(group, saved);
  RuleConfig config = group.rule_config;
  for (const Setting& setting : settings_of(config)) load_setting(setting, config, saved);
  const double lr = number(at(saved, "lr", "param_groups"), "lr");
  const double decay = number(at(saved, "weight_decay", "param_groups"), "weight_decay");
  load.assign([&group, config, lr, decay] {
    group.lr = lr;
    group.weight_decay = decay;
    group.rule_config = config;
    group.rule = make_rule(config);
  });
}

struct StateTarget {
  GroupOptimizer& optimizer;
  const OptimizerGroup& group;
};

struct SavedParam {
  const StateDict* group;
  const StateDict* common;  // the whole `state` dict, for common_step
  const StateDict* state;   // nullptr: none was saved
  std::string path;
};

void load_step(OptimizedParam& param, const SavedParam& saved, StateLoad& load) {
  const StateValue* step = saved.state ? find(*saved.state, "step") : nullptr;
  if (step == nullptr) step = find(*saved.common, "common_step");
  if (step == nullptr) step = find(*saved.group, "step");
  if (step == nullptr) return;
  const bool is_tensor = step->get_if<TensorHandle>() != nullptr;
  const double count =
      is_tensor ? tensor(*step, saved.path).item<double>() : number(*step, saved.path);
  load.assign([&param, count] { param.step = static_cast<int64_t>(count); });
}

void load_param(const StateTarget& target, OptimizedParam& param, const SavedParam& saved,
                StateLoad& load) {
  load_step(param, saved, load);
  if (saved.state == nullptr || saved.state->empty()) {
    load.assign([&param] {
      param.state.clear();
      param.packed_state.clear();
    });
    return;
  }
  check_state_names(*target.group.rule, *saved.state, saved.path);
  const at::IntArrayRef sizes = param.model.param.sizes();
  for (const StateSpec& spec : states_of(target.group.rule_config, {sizes.data(), sizes.size()})) {
    const std::string name(spec.name);
    const std::string path = saved.path + "/" + name;
    const at::Tensor source = tensor(at(*saved.state, name, saved.path), path);
    if (source.sizes() != at::IntArrayRef(spec.shape)) {
      const bool is_like_param = at::IntArrayRef(spec.shape) == sizes;
      refuse_key(path, is_like_param ? "has a different shape from its parameter"
                                     : "has a different shape from what its rule keeps");
    }
    load.assign([&optimizer = target.optimizer, &param, name, source] {
      optimizer.set_state(param, name, source);
    });
  }
}

}  // namespace

StateDict group_fields(const OptimizerGroup& group) {
  const ParamGroup& settings = group.settings;
  StateDict fields;
  put(fields, "is_expert_parallel", settings.is_expert_parallel);
  put(fields, "default_config", settings.default_config);
  put(fields, "wd_mult", settings.wd_mult);
  put(fields, "lr_mult", settings.lr_mult);
  put(fields, "is_decoupled_lr", settings.is_decoupled_lr);
  put(fields, "max_lr", optional_number(settings.max_lr));
  put(fields, "min_lr", optional_number(settings.min_lr));
  if (settings.optimizer) put(fields, "optimizer", *settings.optimizer);
  for (const auto& [key, value] : settings.others) put(fields, key, as_state(value));
  put(fields, "lr", group.lr);
  put_rule_fields(fields, group);
  return fields;
}

StateDict inner_state_dict(std::vector<OptimizerGroup>& groups) {
  StateDict state;
  StateList saved_groups;
  int64_t index = 0;
  for (OptimizerGroup& group : groups) {
    StateDict fields = group_fields(group);
    StateList params;
    for (const OptimizedParam& param : group.params) {
      StateDict of_param = param_state(group, param);
      const bool is_fresh = param.state.empty() && param.packed_state.empty();
      if (!is_fresh) put(state, index, std::move(of_param));
      params.push_back(index++);
    }
    put(fields, "params", std::move(params));
    saved_groups.push_back(std::move(fields));
  }
  StateDict inner;
  put(inner, "state", std::move(state));
  put(inner, "param_groups", std::move(saved_groups));
  return inner;
}

void StateLoad::commit() const {
  const at::NoGradGuard no_grad;
  for (const auto& assignment : assignments_) assignment();
}

std::vector<size_t> load_inner_state(GroupOptimizer& optimizer, std::vector<OptimizerGroup>& groups,
                                     const StateDict& saved, StateLoad& load) {
  const StateList& saved_groups = as_list(at(saved, "param_groups", "optimizer"), "param_groups");
  const StateDict& state = as_dict(at(saved, "state", "optimizer"), "state");
  const std::vector<size_t> match = match_groups(groups, saved_groups);
  for (size_t g = 0; g < groups.size(); ++g) {
    OptimizerGroup& group = groups[g];
    const StateDict& fields = as_dict(saved_groups[match[g]], "param_groups");
    const StateList& ids = as_list(at(fields, "params", "param_groups"), "params");
    if (ids.size() != group.params.size()) {
      refuse_key("params", "a group has " + std::to_string(ids.size()) + " parameters, expected " +
                               std::to_string(group.params.size()));
    }
    load_rule(group, fields, load);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto id = static_cast<int64_t>(number(ids[i], "params"));
      const std::string path = "state/" + std::to_string(id);
      const StateValue* const of_param = find(state, id);
      const StateDict* const dict = of_param ? &as_dict(*of_param, path) : nullptr;
      load_param({optimizer, group}, group.params[i], {&fields, &state, dict, path}, load);
    }
  }
  return match;
}

}  // namespace optim

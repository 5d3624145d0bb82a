#include "step/precision/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <optim/checkpoint_bridge.h>
#include <algorithm>
#include <tuple>
#include <utility>

#include "step/tensors/state_fields.h"

namespace optim {
namespace {

StateValue from_override(const OverrideValue& value) {
  return std::visit([](const auto& content) { return StateValue(content); }, value);
}

StateValue optional_number(const std::optional<double>& value) {
  return value ? StateValue(*value) : StateValue();
}

// torch.optim.Adam's defaults of options that have no effect here.
void put_torch_adam(StateDict& fields, const OptimizerGroup& group, const AdamRule& rule) {
  put(fields, "betas", StateList{rule.beta1, rule.beta2});
  put(fields, "eps", rule.eps);
  put(fields, "weight_decay", group.weight_decay);
  for (const char* const off : {"amsgrad", "maximize"}) put(fields, off, false);
  put(fields, "foreach", StateValue());
  for (const char* const off : {"capturable", "differentiable"}) put(fields, off, false);
  put(fields, "fused", StateValue());
  put(fields, "decoupled_weight_decay", rule.decoupled_weight_decay);
}

void put_fused_adam(StateDict& fields, const OptimizerGroup& group, const AdamRule& rule) {
  put(fields, "bias_correction", rule.bias_correction);
  put(fields, "betas", StateList{rule.beta1, rule.beta2});
  put(fields, "eps", rule.eps);
  put(fields, "weight_decay", group.weight_decay);
  if (!group.params.empty()) put(fields, "step", group.params.front().step);
}

struct RuleFields {
  StateDict& fields;
  const OptimizerGroup& group;
  void operator()(const AdamRule& rule) const {
    if (rule.arithmetic == AdamArithmetic::Torch) {
      put_torch_adam(fields, group, rule);
    } else {
      put_fused_adam(fields, group, rule);
    }
  }
  void operator()(const MuonRule& rule) const {
    put(fields, "momentum", rule.momentum);
    put(fields, "weight_decay", group.weight_decay);
  }
  void operator()(const SgdRule& rule) const {  // torch.optim.SGD's, in its order
    put(fields, "momentum", rule.momentum);
    put(fields, "dampening", int64_t{0});
    put(fields, "weight_decay", group.weight_decay);
    for (const char* const off : {"nesterov", "maximize"}) put(fields, off, false);
    put(fields, "foreach", StateValue());
    put(fields, "differentiable", false);
    put(fields, "fused", StateValue());
  }
  void operator()(const LionRule& rule) const {
    put(fields, "betas", StateList{rule.beta1, rule.beta2});
    put(fields, "weight_decay", group.weight_decay);
  }
};

bool has_step_tensors(const OptimizerGroup& group) {
  const auto* const adam = std::get_if<AdamRule>(&group.rule_config);
  return adam != nullptr && adam->arithmetic == AdamArithmetic::Torch;
}

StateDict param_state(const OptimizerGroup& group, const OptimizedParam& param) {
  StateDict state;
  if (has_step_tensors(group)) {
    put(state, "step", handle_of(at::full({}, static_cast<double>(param.step), at::kFloat)));
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
    refuse_state("param_groups", "has " + std::to_string(saved.size()) + " groups, expected " +
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
    if (i == saved.size()) refuse_state("param_groups", "a group of the optimizer is missing");
    taken[i] = true;
    match.push_back(i);
  }
  return match;
}

std::pair<double, double> betas_of(const StateDict& group) {
  const StateList& betas = as_list(at(group, "betas", "param_groups"), "betas");
  if (betas.size() != 2) refuse_state("betas", "are not two numbers");
  return {number(betas[0], "betas"), number(betas[1], "betas")};
}

// Options of torch's optimizers that would change the result, and that the rules do not have.
void check_options(const OptimizerGroup& group, const StateDict& saved) {
  std::vector<const char*> options = {"amsgrad", "maximize", "dampening"};
  if (std::holds_alternative<SgdRule>(group.rule_config)) options.push_back("nesterov");
  for (const char* const option : options) {
    const StateValue* const value = find(saved, option);
    if (value != nullptr && number(*value, option) != 0) {
      refuse_state(option, "is set, but this optimizer does not support it");
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
      refuse_state(path + "/" + (name != nullptr ? *name : std::to_string(std::get<int64_t>(key))),
                   "is not a state of this optimizer");
    }
  }
}

void load_rule(OptimizerGroup& group, const StateDict& saved, StateLoad& load) {
  check_options(group, saved);
  RuleConfig config = group.rule_config;
  if (auto* const adam = std::get_if<AdamRule>(&config)) {
    std::tie(adam->beta1, adam->beta2) = betas_of(saved);
    adam->eps = number(at(saved, "eps", "param_groups"), "eps");
  } else if (auto* const muon = std::get_if<MuonRule>(&config)) {
    muon->momentum = number(at(saved, "momentum", "param_groups"), "momentum");
  } else if (auto* const sgd = std::get_if<SgdRule>(&config)) {
    sgd->momentum = number(at(saved, "momentum", "param_groups"), "momentum");
  } else if (auto* const lion = std::get_if<LionRule>(&config)) {
    std::tie(lion->beta1, lion->beta2) = betas_of(saved);
  }
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
  for (const std::string_view view : target.group.rule->state_names()) {
    const std::string name(view);
    const std::string path = saved.path + "/" + name;
    const at::Tensor source = tensor(at(*saved.state, name, saved.path), path);
    if (source.sizes() != param.model.param.sizes())
      refuse_state(path, "has a different shape from its parameter");
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
  for (const auto& [key, value] : settings.others) put(fields, key, from_override(value));
  put(fields, "lr", group.lr);
  std::visit(RuleFields{fields, group}, group.rule_config);
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

void StateLoad::assign(std::function<void()> assignment) {
  assignments_.push_back(std::move(assignment));
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
      refuse_state("params", "a group has " + std::to_string(ids.size()) +
                                 " parameters, expected " + std::to_string(group.params.size()));
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

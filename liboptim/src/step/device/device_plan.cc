#include "step/device/device_plan.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

#include <optim/update_rule.h>

#include "rules/refuse_key.h"
#include "step/rules/fp32_betas.h"
#include "step/tensors/param_storage.h"

namespace optim {
namespace {

using kernels::ElementType;

[[noreturn]] void refuse(const OptimizedParam& param, const std::string& problem) {
  refuse_key(param.model.info.name, problem, ckpt::ErrorCode::Unsupported);
}

kernels::Decay decay_of(WeightDecayMethod method) {
  switch (method) {
    case WeightDecayMethod::Decoupled: return kernels::Decay::Decoupled;
    case WeightDecayMethod::Independent: return kernels::Decay::Independent;
    case WeightDecayMethod::L2: return kernels::Decay::L2;
    case WeightDecayMethod::Palm: return kernels::Decay::Palm;
  }
  return kernels::Decay::Decoupled;
}

// Each rule that has kernels, as their settings. Kernels take correctly rounded roots and have no
// tails: Torch and Fused are one there.
void describe(const AdamRule& given, kernels::StepGroup& made) {
  const bool has_fp32_betas = given.arithmetic == AdamArithmetic::TransformerEngine;
  const AdamRule rule = has_fp32_betas ? with_fp32_betas(given) : given;
  kernels::GroupSettings& settings = made.settings;
  settings.rule = has_fp32_betas || rule.arithmetic == AdamArithmetic::FusedAdam
                      ? kernels::RuleKind::FusedAdam
                      : kernels::RuleKind::Adam;
  settings.beta1 = rule.beta1;
  settings.beta2 = rule.beta2;
  settings.eps = rule.eps;
  settings.decay = rule.decoupled_weight_decay ? kernels::Decay::Decoupled : kernels::Decay::L2;
  settings.bias_correction = rule.bias_correction;
}

void describe(const SgdRule& rule, kernels::StepGroup& made) {
  made.settings.rule = kernels::RuleKind::Sgd;
  made.settings.beta1 = rule.momentum;
  made.settings.decay = kernels::Decay::L2;
}

void describe(const LionRule& rule, kernels::StepGroup& made) {
  made.settings.rule = kernels::RuleKind::Lion;
  made.settings.beta1 = rule.beta1;
  made.settings.beta2 = rule.beta2;
  made.settings.decay = decay_of(rule.weight_decay_method);
}

void describe(const MuonRule& rule, kernels::StepGroup& made) {
  made.settings.rule = kernels::RuleKind::Muon;
  made.settings.beta1 = rule.momentum;
  made.settings.nesterov = rule.nesterov;
  made.settings.decay = decay_of(rule.weight_decay_method);
  for (const NewtonSchulzStep& step : newton_schulz_steps(rule.newton_schulz)) {
    made.muon.coefficients.push_back(
        {static_cast<float>(step.a), static_cast<float>(step.b), static_cast<float>(step.c)});
  }
  const MatmulPrecision precision = rule.newton_schulz.precision;
  made.muon.type = precision == MatmulPrecision::Medium ? ElementType::BF16 : ElementType::F32;
  made.muon.tf32 = precision == MatmulPrecision::High;
  made.muon.on_gram = rule.newton_schulz.iteration == NewtonSchulzIteration::Gram;
  made.muon.mirrored_products = rule.newton_schulz.mirrored_products;
  made.muon.extra_scale = rule.extra_scale_factor;
  made.muon.scale = [mode = rule.scale_mode](int64_t rows, int64_t columns) {
    return muon_scale(mode, rows, columns);
  };
}

// False: the rule is none of these.
template <class... Rules>
bool describe_as(const RuleConfig& config, kernels::StepGroup& made) {
  const auto describe_if = [&](const auto* rule) {
    if (rule != nullptr) describe(*rule, made);
    return rule != nullptr;
  };
  return (describe_if(config.get_if<Rules>()) || ...);
}

// Kernels find the scale of a tensor and room for its next one side by side.
kernels::StateScale* paired_scale(PackedTensor& packed, DevicePlan& plan) {
  if (!packed.scale.defined()) return nullptr;
  if (packed.scale.storage().nbytes() < sizeof(kernels::StateScale)) {
    const at::Tensor pair = at::zeros({2}, packed.data.options().dtype(at::kFloat));
    at::Tensor scale = pair.narrow(0, 0, 1);
    scale.copy_(packed.scale);
    packed.scale = scale;
  }
  plan.storages.push_back(packed.scale.storage());
  return static_cast<kernels::StateScale*>(packed.scale.mutable_data_ptr());
}

// One parameter of the plan while it is being filled.
class ParamPlan {
 public:
  ParamPlan(OptimizedParam& param, const at::Device& device, DevicePlan& plan)
      : param_(param), device_(device), plan_(plan) {}

  kernels::StepParam make(const OptimizerGroup& group) {
    add_grad();
    add_main();
    add_states(*group.rule);
    if (const auto* muon = group.rule_config.get_if<MuonRule>()) add_shape(*muon);
    return made_;
  }

  // One that the CPU updates.
  kernels::StepParam make_counted() {
    checked_memory(param_.model.param);
    add_grad();
    made_.stats_only = true;
    return made_;
  }

 private:
  void add_grad() {
    made_.slot.grad = checked_memory(param_.model.main_grad);
    made_.types.grad = device_type(param_, param_.model.main_grad);
    made_.slot.count = param_.model.param.numel();
    const ParamAttributes& attributes = param_.model.info.attributes;
    const bool counts = !attributes.shared && !param_.is_duplicate;
    made_.slot.stats_index = counts ? param_.id : kernels::kNoStats;
  }

  // The gradient's is read by what is queued only, and its stream keeps it that long.
  void* place(const at::Tensor& tensor) {
    void* const memory = checked_memory(tensor);
    if (memory != nullptr) plan_.storages.push_back(tensor.storage());
    return memory;
  }

  void* checked_memory(const at::Tensor& tensor) const {
    if (!tensor.defined()) return nullptr;
    if (tensor.sizes() != param_.model.param.sizes() || !tensor.is_contiguous() ||
        tensor.device() != device_) {
      refuse_key(param_.model.info.name,
                 "expected contiguous parameter, gradient and states of one shape, all on " +
                     device_.str());
    }
    return tensor.mutable_data_ptr();
  }

  void add_main() {
    const at::Tensor& model = param_.model.param;
    if (param_.remainder.defined()) {
      made_.slot.main = place(model);
      made_.slot.remainder = place(param_.remainder);
      made_.types.main = ElementType::SplitF32;
      return;
    }
    const bool is_packed = param_.packed_master.data.defined();
    const at::Tensor& main = is_packed ? param_.packed_master.data : param_.main_param;
    made_.slot.main = place(main);
    made_.types.main = device_type(param_, main);
    if (is_packed) made_.slot.scale[0] = paired_scale(param_.packed_master, plan_);
    if (!has_master(param_)) return;
    made_.slot.model = place(model);
    made_.types.model = device_type(param_, model);
  }

  void add_states(const UpdateRule& rule) {
    size_t index = 0;
    for (const std::string_view state_name : rule.state_names()) {
      const std::string name(state_name);
      const auto packed = param_.packed_state.find(name);
      const bool is_packed = packed != param_.packed_state.end();
      const at::Tensor& tensor = is_packed ? packed->second.data : param_.state.at(name);
      made_.slot.state[index] = place(tensor);
      made_.types.state[index] = device_type(param_, tensor);
      if (is_packed) made_.slot.scale[1 + index] = paired_scale(packed->second, plan_);
      ++index;
    }
  }

  void add_shape(const MuonRule& muon) {
    const at::Tensor& model = param_.model.param;
    if (model.dim() != 2) {
      refuse_key(param_.model.info.name, "Muon updates matrices only");
    }
    made_.rows = model.size(0);
    made_.columns = model.size(1);
    if (!muon.qkv_split || !param_.model.info.attributes.is_qkv) return;
    const QkvSplit& split = *muon.qkv_split;
    const std::array<int64_t, 3> rows = {split.query_rows, split.key_rows, split.value_rows};
    for (size_t i = 0; i < rows.size(); ++i) made_.qkv_rows[i] = static_cast<uint32_t>(rows[i]);
  }

  OptimizedParam& param_;
  at::Device device_;
  DevicePlan& plan_;
  kernels::StepParam made_ = {};
};

// The plan's group of the optimizer group at `place` and number of updates done.
uint32_t group_index(DevicePlan& plan, const OptimizerGroup& group, uint32_t place,
                     int64_t updates_done) {
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    if (plan.groups[i] == &group && plan.plan.groups[i].settings.step == updates_done) return i;
  }
  plan.groups.push_back(&group);
  plan.plan.groups.push_back(device_group(group, updates_done));
  plan.plan.groups.back().settings.rates_index = place;
  const auto* const muon = group.rule_config.get_if<MuonRule>();
  plan.scale_modes.push_back(muon != nullptr ? muon->scale_mode : MuonScaleMode{});
  return static_cast<uint32_t>(plan.groups.size() - 1);
}

std::map<uint32_t, uint32_t> parts_by_id(const UpdateParts& parts) {
  std::map<uint32_t, uint32_t> part_of_id;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    for (const uint32_t id : parts[part]) part_of_id[id] = part;
  }
  return part_of_id;
}

// All that is filled in of a parameter, but for where its gradient lies.
auto param_key(const kernels::StepParam& param) {
  const kernels::TensorSlot& s = param.slot;
  const kernels::TensorTypes& t = param.types;
  return std::tuple(std::array{s.main, s.remainder, s.state[0], s.state[1], s.model},
                    std::to_array(s.scale), s.count, s.group, s.stats_index, param.part,
                    std::array{t.grad, t.main, t.state[0], t.state[1], t.model}, param.rows,
                    param.columns, std::to_array(param.qkv_rows), param.stats_only);
}

bool same_coefficients(const kernels::StepGroup& one, const kernels::StepGroup& other) {
  const auto values = [](const kernels::NewtonSchulzCoefficients& c) {
    return std::array{c.a, c.b, c.c};
  };
  return std::ranges::equal(one.muon.coefficients, other.muon.coefficients, {}, values, values);
}

}  // namespace

kernels::ElementType device_type(const OptimizedParam& param, const at::Tensor& tensor) {
  if (!tensor.defined()) return ElementType::None;
  switch (tensor.scalar_type()) {
    case at::kFloat: return ElementType::F32;
    case at::kBFloat16: return ElementType::BF16;
    case at::kHalf: return ElementType::F16;
    case at::kFloat8_e4m3fn: return ElementType::F8E4M3;
    default: break;
  }
  refuse(param, std::string("the kernels do not know ") + c10::toString(tensor.scalar_type()));
}

kernels::StepGroup device_group(const OptimizerGroup& group, int64_t updates_done) {
  kernels::StepGroup made;
  if (!describe_as<AdamRule, SgdRule, LionRule, MuonRule>(group.rule_config, made)) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "optimizer"},
                      "there are no kernels for '" + std::string(group.rule_config.name()) + "'",
                      "step its parameters on the CPU");
  }
  made.settings.lr = group.lr;
  made.settings.weight_decay = group.weight_decay;
  made.settings.step = updates_done;
  return made;
}

bool DevicePlan::is_equal(const DevicePlan& other) const {
  const auto rule = [](const kernels::StepGroup& group) {
    const kernels::GroupSettings& s = group.settings;
    return std::tuple(s.rule, s.beta1, s.beta2, s.eps, s.step, s.decay, s.bias_correction,
                      s.nesterov, group.muon.type, group.muon.tf32, group.muon.on_gram,
                      group.muon.extra_scale, group.muon.mirrored_products);
  };
  return params == other.params && groups == other.groups && scale_modes == other.scale_modes &&
         plan.stats_count == other.plan.stats_count && plan.part_count == other.plan.part_count &&
         std::ranges::equal(plan.groups, other.plan.groups, {}, rule, rule) &&
         std::ranges::equal(plan.groups, other.plan.groups, same_coefficients) &&
         std::ranges::equal(plan.params, other.plan.params, {}, param_key, param_key);
}

std::vector<const void*> DevicePlan::grads() const {
  std::vector<const void*> pointers;
  for (const kernels::StepParam& param : plan.params) pointers.push_back(param.slot.grad);
  return pointers;
}

const OptimizedParam* DevicePlan::moved_grad(const DevicePlan& other) const {
  for (size_t i = 0; i < params.size(); ++i) {
    if (plan.params[i].slot.grad != other.plan.params[i].slot.grad) return params[i];
  }
  return nullptr;
}

DevicePlan make_device_plan(const std::vector<OptimizerGroup*>& groups,
                            const StatePrecision& precision, const PlanOptions& options) {
  DevicePlan plan;
  plan.plan.stats_count = options.stats_count;
  plan.plan.part_count = static_cast<uint32_t>(std::max<size_t>(1, options.parts.size()));
  const std::map<uint32_t, uint32_t> part_of_id = parts_by_id(options.parts);
  for (OptimizerGroup* const group : groups) {
    if (!group->params.empty()) device_group(*group, 0);  // refuses rules without kernels
  }
  for (uint32_t place = 0; place < groups.size(); ++place) {
    OptimizerGroup* const group = groups[place];
    for (OptimizedParam& param : group->params) {
      if (!param.model.main_grad.defined()) continue;
      plan.params.push_back(&param);
      if (param.is_offloaded) {
        plan.plan.params.push_back(ParamPlan(param, options.device, plan).make_counted());
        continue;
      }
      create_zero_states(*group->rule, param, precision);
      kernels::StepParam made = ParamPlan(param, options.device, plan).make(*group);
      made.slot.group = group_index(plan, *group, place, param.step);
      const auto part = part_of_id.find(param.id);
      made.part = part == part_of_id.end() ? plan.plan.part_count - 1 : part->second;
      plan.plan.params.push_back(made);
    }
  }
  return plan;
}

}  // namespace optim

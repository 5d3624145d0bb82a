// The inverse of trace_file.cc's read_rule() and trace_settings.cc.
#include "trace_config.h"

#include <ckpt/error.h>
#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <optim/update_modes.h>
#include <string>
#include <vector>

#include "rules/mode_names.h"
#include "trace_settings.h"

namespace optim {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string_view rule, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = std::string(rule)}, problem);
}

// `arithmetic` stands there where it is not the class's usual one.
json of_adam(const AdamRule& rule) {
  json config = {{"betas", {rule.beta1, rule.beta2}}, {"eps", rule.eps}};
  const bool is_torch =
      rule.arithmetic == AdamArithmetic::Torch || rule.arithmetic == AdamArithmetic::Fused;
  if (rule.arithmetic != (is_torch ? AdamArithmetic::Torch : AdamArithmetic::FusedAdam)) {
    config["arithmetic"] = kAdamArithmetics[static_cast<size_t>(rule.arithmetic)];
  }
  if (is_torch) {
    config["class"] = rule.decoupled_weight_decay ? "torch.optim.AdamW" : "torch.optim.Adam";
    return config;
  }
  config["class"] = "FusedAdam";
  config["adam_w_mode"] = rule.decoupled_weight_decay;
  config["bias_correction"] = rule.bias_correction;
  return config;
}

json of_muon(const MuonRule& rule) {
  const bool is_known = rule.newton_schulz.coefficients != NsCoefficients::Custom &&
                        (rule.weight_decay_method == WeightDecayMethod::Decoupled ||
                         rule.weight_decay_method == WeightDecayMethod::L2);
  if (!is_known) refuse(MuonRule::kName, "steps with these settings are not recorded");
  json config = {
      {"class", "megatron TensorParallelMuon"},
      {"momentum", rule.momentum},
      {"nesterov", rule.nesterov},
      {"use_decoupled_weight_decay", rule.weight_decay_method == WeightDecayMethod::Decoupled},
      {"fp32_matmul_prec", name(rule.newton_schulz.precision)},
      {"coefficient_type", name(rule.newton_schulz.coefficients)},
      {"num_ns_steps", rule.newton_schulz.steps},
      {"scale_mode", name(rule.scale_mode)},
      {"extra_scale_factor", rule.extra_scale_factor},
      {"split_qkv", rule.qkv_split.has_value()},
      {"qkv_split_shapes", nullptr}};
  if (rule.qkv_split) {
    const QkvSplit& split = *rule.qkv_split;
    config["qkv_split_shapes"] = {split.query_rows, split.key_rows, split.value_rows};
  }
  return config;
}

// A setting of a rule whose row names it as its constructor does.
class SettingWriter {
 public:
  explicit SettingWriter(json& config) : config_(config) {}

  void write(const Setting& setting) {
    name_ = name_in_trace(setting);
    is_shared_ = name_ != setting.name;
    std::visit(*this, setting.place);
  }

  void operator()(bool* place) const { put(*place); }
  void operator()(int64_t* place) const { put(*place); }
  void operator()(double* place) const {
    if (is_shared_) {
      config_[name_].push_back(*place);
    } else {
      put(*place);
    }
  }
  void operator()(std::optional<bool>* place) const { put(*place ? json(**place) : json()); }
  void operator()(const SettingChoice& choice) const {
    put(std::string(choice.names[*choice.value]));
  }
  void operator()(const void* /*place*/) const {}  // lists are ours

 private:
  void put(json value) const { config_[name_] = std::move(value); }

  json& config_;
  std::string name_;
  bool is_shared_ = false;
};

json of_row(const RuleDescription& row, RuleConfig rule) {
  json config = {{"class", row.trace}};
  if (qkv_split_of(rule) != nullptr)
    refuse(row.name, "traces do not say how it splits qkv weights");
  SettingWriter writer(config);
  for (const Setting& setting : settings_of(rule)) {
    if (!is_left_out_of_traces(setting)) writer.write(setting);
  }
  return config;
}

}  // namespace

json trace_config(const RuleConfig& rule) {
  if (const auto* const adam = rule.get_if<AdamRule>()) return of_adam(*adam);
  if (const auto* const muon = rule.get_if<MuonRule>()) return of_muon(*muon);
  if (const auto* const sgd = rule.get_if<SgdRule>()) {
    return {{"class", "torch.optim.SGD"}, {"momentum", sgd->momentum}};
  }
  const RuleDescription& row = rule_named(rule.name());
  if (row.trace.empty()) refuse(row.name, "steps of this rule are not recorded");
  return of_row(row, rule);
}

}  // namespace optim

// Rules from and to traces: by the names of their rows' settings, those that share a field of
// groups (betas) as a list; Adam's, SGD's and Muon's as their classes spell them.
#include "trace_rule.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <optim/update_modes.h>

#include "rules/refuse_key.h"
#include "rules/rows.h"

namespace optim {
namespace {

using nlohmann::json;

// What a trace does not say: which release computed it, and what only our rules have.
bool is_left_out_of_traces(const Setting& setting) {
  constexpr std::string_view kOurs[] = {"era", "scales_twice", "custom_coefficients", "qkv_split",
                                        "schedule_dict"};
  return std::ranges::find(kOurs, setting.name) != std::end(kOurs);
}

// Muon's class says as a flag whether its decay is decoupled.
bool is_read_by_name(const RuleDescription& row, const Setting& setting) {
  const bool is_decay = setting.name == "weight_decay_method" && row.name == MuonRule::kName;
  return !is_left_out_of_traces(setting) && !is_decay;
}

// The setting's own name, or that of the field of groups that holds its number.
std::string name_in_trace(const Setting& setting) {
  const bool is_number = std::holds_alternative<double*>(setting.place);
  return std::string(setting.field.empty() || !is_number ? setting.name : setting.field);
}

// --- read ---

class SettingReader {
 public:
  // `is_whole`: the class writes all of its settings, so that none may be absent.
  SettingReader(const JsonFields& fields, const std::vector<Setting>& settings, bool is_whole)
      : json_(fields), settings_(settings), is_whole_(is_whole) {}

  void read(const Setting& setting) {
    name_ = name_in_trace(setting);
    setting_ = &setting;
    if (is_whole_ || json_.has(name_)) std::visit(*this, setting.place);
  }

  void operator()(bool* place) const { *place = json_.flag(name_); }
  void operator()(int64_t* place) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    const int64_t most = name_ == "num_ns_steps" ? kNewtonSchulzStepsMax : kMost;
    *place = json_.whole(name_, setting_->range == SettingRange::AtLeastOne ? 1 : 0, most);
  }
  void operator()(double* place) const {
    if (name_ != setting_->name) {
      const auto [index, count] = rows::place_in_list(*setting_, settings_);
      *place = json_.numbers(name_, count, SettingRange::Averaging)[index];
    } else {
      *place = json_.number(name_, setting_->range);
    }
  }
  void operator()(std::optional<bool>* place) const {
    if (!json_.any(name_).is_null()) *place = json_.flag(name_);
  }
  void operator()(const SettingChoice& choice) const {
    const std::string text = json_.text(name_);
    const auto found = std::ranges::find(choice.names, text);
    if (found == choice.names.end()) {
      json_.refuse_unsupported(name_, "'" + ckpt::escaped(text) + "' is not supported");
    }
    *choice.value = static_cast<uint8_t>(found - choice.names.begin());
  }
  void operator()(const void* /*place*/) const {}  // lists are ours

 private:
  const JsonFields& json_;
  const std::vector<Setting>& settings_;
  bool is_whole_;
  const Setting* setting_ = nullptr;
  std::string name_;
};

RuleConfig read_row(const RuleDescription& row, const JsonFields& config, bool is_whole) {
  RuleConfig rule = row.defaults();
  const std::vector<Setting> settings = settings_of(rule);
  SettingReader reader(config, settings, is_whole);
  for (const Setting& setting : settings) {
    if (is_read_by_name(row, setting)) reader.read(setting);
  }
  return rule;
}

// `usual` where the trace does not say, else that or `other`.
AdamArithmetic adam_arithmetic(const JsonFields& config, AdamArithmetic usual,
                               AdamArithmetic other) {
  if (!config.has("arithmetic")) return usual;
  const auto name_of = [](AdamArithmetic one) {
    return kAdamArithmetics[static_cast<size_t>(one)];
  };
  return config.one_of("arithmetic", {name_of(usual), name_of(other)}) == name_of(usual) ? usual
                                                                                         : other;
}

AdamRule adam_rule(const JsonFields& config, bool decoupled) {
  AdamRule rule;
  const auto betas = config.numbers("betas", 2, SettingRange::Averaging);
  rule.beta1 = betas[0];
  rule.beta2 = betas[1];
  rule.eps = config.number("eps", SettingRange::AtLeastZero);
  rule.decoupled_weight_decay = decoupled;
  return rule;
}

// TransformerEngine's and Apex's, which decays and updates in one sum.
AdamRule fused_adam_rule(const JsonFields& config) {
  AdamRule rule = adam_rule(config, config.flag("adam_w_mode"));
  rule.bias_correction = config.flag("bias_correction");
  rule.arithmetic =
      adam_arithmetic(config, AdamArithmetic::FusedAdam, AdamArithmetic::TransformerEngine);
  return rule;
}

// Rows of query, key and value; written as null where nothing is split.
std::optional<QkvSplit> qkv_split(const JsonFields& config) {
  const bool splits = config.flag("split_qkv");
  if (!splits && config.any("qkv_split_shapes").is_null()) return std::nullopt;
  const auto rows = config.wholes("qkv_split_shapes", 3, 1, int64_t{1} << 31);
  return splits ? std::optional(QkvSplit{rows[0], rows[1], rows[2]}) : std::nullopt;
}

MuonRule muon_rule(const JsonFields& config) {
  RuleConfig read = read_row(rule_named(MuonRule::kName), config, /*is_whole=*/true);
  MuonRule& rule = *read.get_if<MuonRule>();
  if (rule.newton_schulz.coefficients > NsCoefficients::DeepseekV4) {  // which no recording has
    config.refuse_unsupported(
        "coefficient_type",
        "'" + std::string(name(rule.newton_schulz.coefficients)) + "' is not supported");
  }
  rule.weight_decay_method = config.flag("use_decoupled_weight_decay")
                                 ? WeightDecayMethod::Decoupled
                                 : WeightDecayMethod::L2;
  rule.qkv_split = qkv_split(config);
  return rule;
}

// torch.optim.Muon: one polynomial for all steps, and a learning rate that depends on the shape.
MuonRule torch_muon_rule(const JsonFields& config) {
  MuonRule rule;
  rule.momentum = config.number("momentum", SettingRange::Averaging);
  rule.nesterov = config.flag("nesterov");
  rule.newton_schulz.steps = config.whole("ns_steps", 1, kNewtonSchulzStepsMax);
  const auto row = config.numbers("ns_coefficients", 3);
  rule.newton_schulz.coefficients = NsCoefficients::Custom;
  rule.newton_schulz.custom = {{row[0], row[1], row[2]}};
  if (config.one_of("adjust_lr_fn", {"original", "match_rms_adamw"}) == "original") {
    rule.scale_mode = MuonScaleMode::ShapeScaling;
  } else {
    rule.extra_scale_factor = 0.2;
  }
  return rule;
}

// --- written ---

[[noreturn]] void refuse_rule(std::string_view rule, std::string problem) {
  refuse_key(rule, std::move(problem), ckpt::ErrorCode::Unsupported);
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

json of_row(const RuleDescription& row, RuleConfig rule, std::string_view class_name) {
  json config = {{"class", class_name}};
  for (const Setting& setting : settings_of(rule)) {
    if (!is_read_by_name(row, setting)) continue;
    const std::string name = name_in_trace(setting);
    const auto as_json = [](const auto& value) -> json {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
        return nullptr;
      else
        return value;
    };
    json value = std::visit(as_json, rows::value_of(setting.place));
    if (name == setting.name) {
      config[name] = std::move(value);
    } else {
      config[name].push_back(std::move(value));
    }
  }
  return config;
}

json of_muon(const MuonRule& rule) {
  const bool is_known = rule.newton_schulz.coefficients != NsCoefficients::Custom &&
                        (rule.weight_decay_method == WeightDecayMethod::Decoupled ||
                         rule.weight_decay_method == WeightDecayMethod::L2);
  if (!is_known) refuse_rule(MuonRule::kName, "steps with these settings are not recorded");
  json config = of_row(rule_named(MuonRule::kName), rule, "megatron TensorParallelMuon");
  config["use_decoupled_weight_decay"] = rule.weight_decay_method == WeightDecayMethod::Decoupled;
  config["split_qkv"] = rule.qkv_split.has_value();
  config["qkv_split_shapes"] = nullptr;
  if (rule.qkv_split) {
    const QkvSplit& split = *rule.qkv_split;
    config["qkv_split_shapes"] = {split.query_rows, split.key_rows, split.value_rows};
  }
  return config;
}

}  // namespace

RuleConfig rule_of_trace(const JsonFields& config, EmergingOptimizers era) {
  const auto kind = config.text("class");
  if (kind == "torch.optim.AdamW" || kind == "torch.optim.Adam") {
    AdamRule rule = adam_rule(config, kind == "torch.optim.AdamW");
    rule.arithmetic = adam_arithmetic(config, AdamArithmetic::Torch, AdamArithmetic::Fused);
    return rule;
  }
  if (kind == "FusedAdam") return fused_adam_rule(config);
  if (kind == "torch.optim.SGD") return SgdRule{config.number("momentum", SettingRange::Averaging)};
  if (kind == "megatron TensorParallelMuon") return muon_rule(config);
  if (kind == "torch.optim.Muon") return torch_muon_rule(config);
  for (const RuleDescription* const row : rule_table()) {
    if (row->trace.empty() || row->trace != kind) continue;
    RuleConfig rule = read_row(*row, config, /*is_whole=*/false);
    for (const Setting& setting : settings_of(rule)) {
      if (setting.name != "era") continue;
      *std::get<SettingChoice>(setting.place).value = static_cast<uint8_t>(era);
    }
    if (row->check != nullptr) row->check(rule);
    return rule;
  }
  config.refuse_unsupported("class", "traces of '" + ckpt::escaped(kind) + "' cannot be replayed",
                            kReplayedTraces);
}

json trace_config(const RuleConfig& rule) {
  if (const auto* const adam = rule.get_if<AdamRule>()) return of_adam(*adam);
  if (const auto* const muon = rule.get_if<MuonRule>()) return of_muon(*muon);
  if (const auto* const sgd = rule.get_if<SgdRule>()) {
    return {{"class", "torch.optim.SGD"}, {"momentum", sgd->momentum}};
  }
  const RuleDescription& row = rule_named(rule.name());
  if (row.trace.empty()) refuse_rule(row.name, "steps of this rule are not recorded");
  if (qkv_split_of(rule) != nullptr)
    refuse_rule(row.name, "traces do not say how it splits qkv weights");
  return of_row(row, rule, row.trace);
}

}  // namespace optim

#include <training/optimizer_facts.h>

#include <algorithm>
#include <set>

#include "report/flat_groups.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

std::optional<Value> setting(const StoredGroup& group, std::string_view name) {
  for (const auto& [key, value] : group.settings) {
    if (key == name) return value;
  }
  return std::nullopt;
}

bool has(const StoredGroup& group, std::string_view name) {
  return setting(group, name).has_value();
}

std::optional<double> number(const StoredGroup& group, std::string_view name) {
  const auto value = setting(group, name);
  const bool is_number = value && (value->is(Kind::Float) || value->is(Kind::Int));
  return is_number ? std::optional(value->as_float()) : std::nullopt;
}

// Megatron decouples weight decay unless its arguments say otherwise.
std::string adam_name(const StoredGroup& group, const RunFacts& run) {
  const auto decoupled = setting(group, "decoupled_weight_decay");
  const bool is_decoupled = decoupled && decoupled->is(Kind::Bool)
                                ? decoupled->as_bool()
                                : run.decoupled_weight_decay.value_or(run.args.has_value());
  return is_decoupled ? "AdamW" : "Adam";
}

void add_once(std::optional<double> value, std::vector<double>& values) {
  if (value && std::ranges::find(values, *value) == values.end()) values.push_back(*value);
}

std::string identity(const StoredGroup& group) {
  std::string text = std::to_string(group.optimizer) + "." + std::to_string(group.group);
  for (const auto& [key, value] : group.settings) {
    text += "\n" + key + "=" + signature_of(value).value_or("");
  }
  return text;
}

}  // namespace

// By the settings that only its rule has.
std::string rule_of(const StoredGroup& group, const RunFacts& run) {
  if (has(group, "shampoo_beta")) return "SOAP";
  if (has(group, "betas")) return has(group, "eps") ? adam_name(group, run) : "Lion";
  if (has(group, "dampening")) return "SGD";
  const bool is_muon = run.optimizer.find("muon") != std::string::npos;
  if (has(group, "ns_steps") || has(group, "num_ns_steps")) return "Muon";
  if (is_muon && has(group, "momentum")) {
    return run.optimizer.find("adaptive") != std::string::npos ? "AdaptiveMuon" : "Muon";
  }
  return "optimizer";
}

std::vector<OptimizerFacts> describe_optimizers(std::span<const StoredGroup> groups,
                                                const RunFacts& run) {
  std::set<std::string> files;
  for (const StoredGroup& group : groups) files.insert(group.file);
  std::set<std::string> seen;
  std::vector<OptimizerFacts> all;
  for (const StoredGroup& group : groups) {
    if (!seen.insert(identity(group)).second) continue;
    const std::string rule = rule_of(group, run);
    auto facts = std::ranges::find(all, rule, &OptimizerFacts::rule);
    if (facts == all.end()) {
      all.push_back({rule, 0, {}, {}});
      facts = all.end() - 1;
    }
    const bool is_counted = facts->parameter_count && group.param_count && files.size() == 1;
    facts->parameter_count =
        is_counted ? std::optional(*facts->parameter_count + *group.param_count) : std::nullopt;
    add_once(number(group, "lr"), facts->learning_rates);
    add_once(number(group, "weight_decay"), facts->weight_decays);
  }
  return all;
}

std::optional<int64_t> step_of_groups(std::span<const StoredGroup> groups) {
  std::optional<int64_t> step;
  for (const StoredGroup& group : groups) {
    const auto stated = number(group, "step");
    if (stated && *stated >= 0 && *stated < 1e18) {
      step = std::max(step.value_or(0), static_cast<int64_t>(*stated));
    }
  }
  return step;
}

std::vector<double> balance_of(std::span<const RankLoad> ranks) {
  double total = 0;
  for (const RankLoad& load : ranks) total += load.cost.value_or(0);
  if (ranks.size() < 2 || total <= 0) return {};
  const double mean = total / static_cast<double>(ranks.size());
  std::vector<double> shares;
  for (const RankLoad& load : ranks) shares.push_back(load.cost.value_or(0) / mean);
  return shares;
}

}  // namespace optim

#include <optim/reference_groups.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <type_traits>
#include <utility>

#include <ckpt/glob.h>

#include "rules/refuse_key.h"
#include "rules/rows.h"

// The rules are those of Megatron-Core's _get_param_groups and get_megatron_optimizer (core
// 0.18-dev). tests/golden/optim_layout/groups.json has the real function's answers.

namespace optim {
namespace {

// A number that the rule reads from its groups: eps, momentum, ...
bool reads(const RuleDescription& rule, std::string_view field) {
  RuleConfig settings = rule.defaults();
  return std::ranges::any_of(settings_of(settings), [&](const Setting& setting) {
    return setting.field == field && setting.field == setting.name &&
           std::holds_alternative<double*>(setting.place);
  });
}

bool any_rule_reads(std::string_view field) {
  return std::ranges::any_of(rule_table(),
                             [field](const RuleDescription* rule) { return reads(*rule, field); });
}

std::optional<double> as_number(const OverrideValue& value) {
  return std::visit(
      [](const auto& v) -> std::optional<double> {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>)
          return std::nullopt;
        else
          return static_cast<double>(v);
      },
      value);
}

std::string text(const OverrideValue& value) {
  if (const auto* words = std::get_if<std::string>(&value)) return "'" + *words + "'";
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  return std::to_string(std::get<double>(value));
}

// Python's order of two values under the same key: below 0, 0 or above.
int compare(std::string_view key, const OverrideValue& a, const OverrideValue& b) {
  const std::optional<double> x = as_number(a), y = as_number(b);
  if (x.has_value() != y.has_value()) {
    refuse_key(key, "groups override it with " + text(a) + " and " + text(b) +
                        ", which cannot be ordered");
  }
  if (x) return *x < *y ? -1 : *x > *y ? 1 : 0;
  return std::get<std::string>(a).compare(std::get<std::string>(b));
}

// The order of sorted item tuples; a prefix comes first.
int compare(const ParamGroupOverride& a, const ParamGroupOverride& b) {
  auto x = a.begin(), y = b.begin();
  for (; x != a.end() && y != b.end(); ++x, ++y) {
    if (const int order = x->first.compare(y->first); order != 0) return order;
    if (const int order = compare(x->first, x->second, y->second); order != 0) return order;
  }
  return (x != a.end()) - (y != b.end());
}

bool comes_before(const GroupKey& a, const GroupKey& b) {
  if (!a.overrides || !b.overrides) return !a.overrides && b.overrides;
  return compare(*a.overrides, *b.overrides) < 0;
}

bool same_key(const GroupKey& a, const GroupKey& b) {
  const auto same_item = [](const auto& x, const auto& y) {
    return x.first == y.first && same_value(x.second, y.second);
  };
  if (a.is_expert_parallel != b.is_expert_parallel) return false;
  if (!a.overrides || !b.overrides) return a.overrides.has_value() == b.overrides.has_value();
  return std::ranges::equal(*a.overrides, *b.overrides, same_item);
}

size_t find_or_add(std::vector<GroupKey>& keys, const GroupKey& key) {
  const auto at = std::ranges::find_if(keys, [&](const GroupKey& k) { return same_key(k, key); });
  if (at != keys.end()) return static_cast<size_t>(at - keys.begin());
  keys.push_back(key);
  return keys.size() - 1;
}

// The base config chooses this for all parameters; an override may only repeat its choice.
void check_fixed(const ParamGroupOverride& override, const std::string& field,
                 const OverrideValue& base) {
  const auto at = override.find(field);
  if (at == override.end() || same_value(at->second, base)) return;
  refuse_key(field, "an override sets " + text(at->second) + " where the configuration has " +
                        text(base) + "; it cannot differ between groups");
}

void check_optimizer(const ParamGroupOverride& override) {
  const auto at = override.find("optimizer");
  if (at == override.end()) return;
  const auto* const name = std::get_if<std::string>(&at->second);
  if (name == nullptr) {
    refuse_key("optimizer", "an override sets it to " + text(at->second) + ", expected a name");
  }
  rule_named(*name);
}

// What grouping, the rules and the schedule read, and what check_fixed() compares.
void check_fields(const ParamGroupOverride& override) {
  constexpr std::array<std::string_view, 10> kRead = {"wd_mult",
                                                      "lr_mult",
                                                      "max_lr",
                                                      "min_lr",
                                                      "is_decoupled_lr",
                                                      "optimizer",
                                                      "start_wd",
                                                      "end_wd",
                                                      "overlap_param_gather_with_optimizer_step",
                                                      "optimizer_cpu_offload"};
  for (const auto& [field, value] : override) {
    if (std::ranges::find(kRead, field) != kRead.end()) continue;
    if (!any_rule_reads(field)) refuse_key(field, "an override sets it, but nothing reads it");
  }
}

void check_overrides(const OptimizerConfig& config, const ConfigOverrides& overrides) {
  for (const auto& [key, override] : overrides) {
    check_fixed(override, "overlap_param_gather_with_optimizer_step",
                config.overlap_param_gather_with_optimizer_step);
    check_fixed(override, "optimizer_cpu_offload", config.optimizer_cpu_offload);
    check_optimizer(override);
    for (const char* own : {"params", "is_expert_parallel", "default_config"}) {
      if (override.contains(own))
        refuse_key(own, "an override cannot set this; grouping computes it");
    }
    check_fields(override);
  }
}

// --- what decides the group of a parameter ---

// An override whose globs are read once, not for each parameter. The override must outlive it.
struct Selector {
  explicit Selector(const ConfigOverrides::value_type& entry)
      : globs(entry.first.name.begin(), entry.first.name.end()),
        rest(entry.first),
        override(entry.second) {
    rest.name.clear();
  }
  bool matches(const ParamInfo& param) const {
    return std::ranges::any_of(globs, [&](const auto& g) { return g.matches(param.name); }) ||
           rest.matches(param, param.name);
  }

  std::vector<ckpt::Glob> globs;
  ParamKey rest;
  const ParamGroupOverride& override;
};
using Selectors = std::vector<Selector>;

// All that decides the group of a parameter: 10^6 parameters have few different ones.
struct KeyTraits {
  std::vector<bool> matched;  // [override]
  bool is_expert_parallel = false;
  bool is_scalar = false;  // an emerging optimizer leaves it to the scalar one
  bool is_matrix = false;
  auto operator<=>(const KeyTraits&) const = default;
};

// What an emerging optimizer leaves to the scalar one, which updates matrices only. The reference
// hard-codes adam; we read muon_scalar_optimizer, as documented.
bool is_for_scalar_optimizer(const ParamInfo& param) {
  return param.attributes.is_embedding_or_output_parameter || !param.attributes.use_muon ||
         param.shape.size() != 2;
}

KeyTraits traits_of(const ParamInfo& param, const Selectors& overrides) {
  KeyTraits traits{.matched = {}, .is_expert_parallel = !param.attributes.allreduce};
  for (const Selector& selector : overrides) traits.matched.push_back(selector.matches(param));
  traits.is_scalar = is_for_scalar_optimizer(param);
  traits.is_matrix = param.shape.size() == 2;
  return traits;
}

// --- keys and groups ---

// All overrides that match, merged.
GroupKey key_of(const ParamInfo& param, const KeyTraits& traits, const Selectors& overrides) {
  GroupKey key{.is_expert_parallel = traits.is_expert_parallel};
  for (size_t i = 0; i < overrides.size(); ++i) {
    if (!traits.matched[i]) continue;
    if (!key.overrides) key.overrides.emplace();
    for (const auto& [field, value] : overrides[i].override) {
      const auto [at, is_new] = key.overrides->emplace(field, value);
      if (is_new || same_value(at->second, value)) continue;
      refuse_key(param.name, "conflicting overrides of '" + field + "': " + text(at->second) +
                                 " and " + text(value));
    }
  }
  return key;
}

// The caller's overrides and the optimizer that the configuration implies; the caller's wins.
GroupKey key_of(const ParamInfo& param, const KeyTraits& traits, const OptimizerConfig& config,
                const Selectors& overrides) {
  GroupKey key = key_of(param, traits, overrides);
  if (rows::has(&RuleDescription::is_emerging, config.optimizer) && traits.is_scalar) {
    if (!key.overrides) key.overrides.emplace();
    key.overrides->emplace("optimizer", config.muon_scalar_optimizer);
  }
  std::string rule = config.optimizer;
  if (key.overrides && key.overrides->contains("optimizer")) {
    rule = std::get<std::string>(key.overrides->at("optimizer"));
  }
  if (rows::has(&RuleDescription::needs_matrix, rule) && !traits.is_matrix) {
    refuse_key(param.name, "is not a matrix; '" + rule + "' updates matrices only");
  }
  return key;
}

double number(std::string_view field, const OverrideValue& value) {
  if (const auto real = as_number(value)) return *real;
  refuse_key(field, "an override sets it to " + text(value) + ", expected a number");
}

void apply(ParamGroup& group, const std::string& field, const OverrideValue& value) {
  if (field == "wd_mult")
    group.wd_mult = number(field, value);
  else if (field == "lr_mult")
    group.lr_mult = number(field, value);
  else if (field == "max_lr")
    group.max_lr = number(field, value);
  else if (field == "min_lr")
    group.min_lr = number(field, value);
  else if (field == "is_decoupled_lr")
    group.is_decoupled_lr = number(field, value) != 0;
  else if (field != "optimizer")
    group.others.emplace(field, value);
  else if (const auto* name = std::get_if<std::string>(&value))
    group.optimizer = *name;
  else
    refuse_key(field, "an override sets it to " + text(value) + ", expected a name");
}

// What only some rules read, another rule's group would drop.
void check_others(const ParamGroup& group) {
  for (const auto& [field, value] : group.others) {
    const RuleDescription* const own = find_rule(group.updated_by);
    if (!any_rule_reads(field) || (own != nullptr && reads(*own, field))) continue;
    refuse_key(field, "an override sets it for parameters that '" + group.updated_by +
                          "' updates, which does not read it");
  }
}

ParamGroup make_group(const GroupKey& key, const OptimizerConfig& config) {
  ParamGroup group{
      .is_expert_parallel = key.is_expert_parallel, .max_lr = config.lr, .min_lr = config.min_lr};
  if (key.overrides) {
    for (const auto& [field, value] : *key.overrides) {
      apply(group, field, value);
      // The reference's test: any key with these two letters, so also `is_decoupled_lr`.
      if (field.find("lr") != std::string::npos) group.default_config = false;
    }
  }
  group.updated_by = group.optimizer.value_or(config.optimizer);
  check_others(group);
  return group;
}

// Which chained optimizer each group goes to. Emerging: one per name in order of first use. Else:
// dense, then expert. Layer-wise sharding deals experts itself, so they need no optimizer of their
// own.
void chain(std::vector<ParamGroup>& groups, const OptimizerConfig& config) {
  const bool emerging = rows::has(&RuleDescription::is_emerging, config.optimizer);
  std::vector<std::pair<std::string, bool>> chained;
  if (!emerging) chained.emplace_back(config.optimizer, false);
  for (ParamGroup& group : groups) {
    const bool apart = group.is_expert_parallel && !config.use_layer_wise_distributed_optimizer;
    const std::pair<std::string, bool> owner{group.updated_by, apart};
    auto at = std::ranges::find(chained, owner);
    if (at == chained.end()) at = chained.insert(at, owner);
    group.optimizer_index = static_cast<uint32_t>(at - chained.begin());
  }
  std::ranges::stable_sort(groups, {}, &ParamGroup::optimizer_index);
}

struct Keyed {
  std::vector<GroupKey> keys;                          // in order of first use
  std::vector<std::vector<GroupedParam>> params = {};  // [key]
};

Keyed sort_by_key(std::vector<ParamInfo> params, const OptimizerConfig& config,
                  const ConfigOverrides& overrides) {
  check_overrides(config, overrides);
  const Selectors selectors(overrides.begin(), overrides.end());
  Keyed keyed;
  std::map<KeyTraits, size_t> place_of;               // of a key
  std::vector<size_t> places(params.size()), counts;  // [parameter] and [key]
  for (size_t i = 0; i < params.size(); ++i) {
    ParamInfo& param = params[i];
    if (!param.requires_grad) continue;
    const ParamAttributes tags = megatron_attributes(param.name, param.shape.size());
    param.attributes.expert_tp |= tags.expert_tp;
    param.attributes.is_qkv |= tags.is_qkv;
    const KeyTraits traits = traits_of(param, selectors);
    auto known = place_of.find(traits);
    if (known == place_of.end()) {
      const GroupKey key = key_of(param, traits, config, selectors);
      known = place_of.emplace(traits, find_or_add(keyed.keys, key)).first;
      counts.resize(keyed.keys.size());
    }
    places[i] = known->second;
    ++counts[places[i]];
  }
  for (const size_t count : counts) keyed.params.emplace_back().reserve(count);
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].requires_grad) continue;
    keyed.params[places[i]].push_back({i, std::move(params[i])});
  }
  return keyed;
}

// Keys of all ranks come first: where overrides do not decide, their order does, the same on each.
Keyed with_keys_first(std::span<const GroupKey> keys, Keyed own) {
  Keyed all;
  for (const GroupKey& key : keys) find_or_add(all.keys, key);
  all.params.resize(all.keys.size());
  for (size_t i = 0; i < own.keys.size(); ++i) {
    const size_t at = find_or_add(all.keys, own.keys[i]);
    all.params.resize(all.keys.size());
    all.params[at] = std::move(own.params[i]);
  }
  return all;
}

std::vector<ParamGroup> groups_of(Keyed keyed, const OptimizerConfig& config) {
  std::vector<size_t> order(keyed.keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return comes_before(keyed.keys[a], keyed.keys[b]); });
  std::vector<ParamGroup> groups;
  for (const size_t at : order) {
    groups.push_back(make_group(keyed.keys[at], config));
    groups.back().params = std::move(keyed.params[at]);
  }
  chain(groups, config);
  return groups;
}

}  // namespace

bool same_value(const OverrideValue& a, const OverrideValue& b) {
  const std::optional<double> x = as_number(a), y = as_number(b);
  if (x.has_value() != y.has_value()) return false;
  return x ? *x == *y : std::get<std::string>(a) == std::get<std::string>(b);
}

void validate_overrides(const OptimizerConfig& config, const ConfigOverrides& overrides,
                        ReferenceRules) {
  check_overrides(config, overrides);
  for (const auto& [key, override] : overrides) {
    check_fixed(override, "optimizer", config.optimizer);
  }
}

std::vector<ParamGroup> get_param_groups(std::span<const ParamInfo> params,
                                         const OptimizerConfig& config,
                                         const ConfigOverrides& overrides, ReferenceRules rules) {
  validate_overrides(config, overrides, rules);
  OptimizerConfig read = config;
  read.muon_scalar_optimizer = "adam";
  return get_param_groups(params, read, overrides);
}

std::vector<GroupKey> get_group_keys(std::span<const ParamInfo> params,
                                     const OptimizerConfig& config,
                                     const ConfigOverrides& overrides) {
  return sort_by_key({params.begin(), params.end()}, config, overrides).keys;
}

std::vector<ParamGroup> get_param_groups(std::span<const ParamInfo> params,
                                         const OptimizerConfig& config,
                                         const ConfigOverrides& overrides,
                                         std::span<const GroupKey> keys_of_all_ranks) {
  Keyed own = sort_by_key({params.begin(), params.end()}, config, overrides);
  return groups_of(with_keys_first(keys_of_all_ranks, std::move(own)), config);
}

std::vector<ParamGroup> get_param_groups(std::span<const ParamInfo> params,
                                         const OptimizerConfig& config) {
  return get_param_groups(std::vector<ParamInfo>(params.begin(), params.end()), config);
}

std::vector<ParamGroup> get_param_groups(std::vector<ParamInfo> params,
                                         const OptimizerConfig& config) {
  return groups_of(sort_by_key(std::move(params), config, get_standard_config_overrides(config)),
                   config);
}

}  // namespace optim

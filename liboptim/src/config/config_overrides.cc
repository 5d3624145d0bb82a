// Overrides of parameter groups: a dict of them, and those that Megatron makes of a configuration.
// Source: get_standard_config_overrides of megatron/core/optimizer/__init__.py.
#include <algorithm>
#include <utility>

#include <optim/param_group.h>

namespace optim {

void set_override(ConfigOverrides& overrides, ParamKey key, ParamGroupOverride value) {
  const auto at = std::ranges::find(overrides, key, &ConfigOverrides::value_type::first);
  if (at != overrides.end())
    at->second = std::move(value);
  else
    overrides.emplace_back(std::move(key), std::move(value));
}

ConfigOverrides get_standard_config_overrides(const OptimizerConfig& config) {
  ConfigOverrides overrides;
  if (config.apply_wd_to_qk_layernorm) {
    ParamWithNamePredicate not_decayed{
        "s1_not_qkln", [](const ParamInfo& param, std::string_view name) {
          const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
          return (param.shape.size() == 1 || name.ends_with(".bias")) && !has("q_layernorm.") &&
                 !has("k_layernorm.");
        }};
    set_override(overrides, {.with_name_predicate = {std::move(not_decayed)}}, {{"wd_mult", 0.0}});
  } else {
    ParamPredicate is_vector{"param_len_1",
                             [](const ParamInfo& param) { return param.shape.size() == 1; }};
    set_override(overrides, {.name = {"*.bias"}, .predicate = {std::move(is_vector)}},
                 {{"wd_mult", 0.0}});
  }
  if (config.decoupled_lr) {
    ParamGroupOverride decoupled{{"max_lr", *config.decoupled_lr}};
    if (config.decoupled_min_lr) decoupled.emplace("min_lr", *config.decoupled_min_lr);
    set_override(overrides, {.attr = {"is_embedding_or_output_parameter"}}, std::move(decoupled));
  }
  return overrides;
}

}  // namespace optim

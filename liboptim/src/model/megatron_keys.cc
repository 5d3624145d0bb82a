#include "model/megatron_keys.h"

namespace optim {
namespace {

const ModelRules& rules_of_model() { return ModelRules::built_in(); }

std::string in_layer_name(uint32_t layer, std::string_view rest) {
  return std::string(kLayersPrefix) + std::to_string(layer) + "." + std::string(rest);
}

// The local transformer implementation has separate layer norms, which its sharded state dict files
// under the names that TransformerEngine's fused modules have.
std::string_view fused_name(const NameInLayer& name, const KeyRules& rules) {
  if (!rules.layer_norm_renamed) return name.rest;
  const auto found = rules_of_model().find(in_layer_name(name.layer, name.rest));
  return found && !found->rule->local_key.empty() ? found->rule->local_key : name.rest;
}

std::string_view local_name(std::string_view rest, const KeyRules& rules) {
  if (!rules.layer_norm_renamed) return rest;
  for (const ModelRule& rule : rules_of_model().rows()) {
    if (rule.local_key == rest) return rule.name;
  }
  return rest;
}

}  // namespace

ShardedName sharded_name(std::string_view name, const KeyRules& rules) {
  const auto in_layer = split_layer(name);
  if (!in_layer) return {std::string(name), std::nullopt};
  const std::string_view rest = fused_name(*in_layer, rules);
  if (!rules.layers_stacked) return {in_layer_name(in_layer->layer, rest), std::nullopt};
  return {std::string(kLayersPrefix) + std::string(rest), in_layer->layer};
}

std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules) {
  if (sharded.layer) {
    const std::string_view rest = std::string_view(sharded.key).substr(kLayersPrefix.size());
    return in_layer_name(*sharded.layer, local_name(rest, rules));
  }
  const auto in_layer = split_layer(sharded.key);
  if (!in_layer) return sharded.key;
  return in_layer_name(in_layer->layer, local_name(in_layer->rest, rules));
}

bool is_stacked_key(std::string_view key) {
  return key.starts_with(kLayersPrefix) && !split_layer(key) && key.size() > kLayersPrefix.size();
}

bool is_layer_key(std::string_view key) { return split_layer(key).has_value(); }

// Mixture-of-experts layers are refused until their stacks are written.
std::optional<ModelPlace> model_position(std::string_view name) {
  const auto found = rules_of_model().find(name);
  if (!found || found->rule->moe) return std::nullopt;
  return found->place;
}

bool is_extra_state(std::string_view name) {
  return name == kExtraState || name.ends_with("._extra_state");
}

bool is_gated_half(std::string_view name) {
  const auto found = rules_of_model().find(name);
  return found && found->rule->split == SplitKind::GatedRows;
}

}  // namespace optim

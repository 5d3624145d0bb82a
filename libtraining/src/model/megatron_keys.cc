// Names of a state dict from and to keys of a sharded state dict.
#include "model/megatron_keys.h"

#include <algorithm>

#include <ckpt/error.h>

#include "model/stage_names.h"

namespace optim {
namespace {

constexpr std::string_view kMtpTransformerLayer = "transformer_layer.";  // in torch_dist

// Of a key, or of what is not in a stack: of the model.
ModelRules::KeyFlavor flavor_of(std::string_view key, const KeyRules& rules) {
  return {stack_rules(key, rules).layer_norm_renamed, rules.experts_grouped};
}

// The local transformer implementation has separate layer norms, which its sharded state dict files
// under the names that TransformerEngine's fused modules have.
std::string_view key_in_layer(const NameInLayer& name, const KeyRules& rules, bool is_renamed) {
  const auto found = rules.table->find_in_layer(name);
  if (!found) return name.rest;
  const ModelRule& rule = *found->rule;
  if (is_renamed && !rule.local_key.empty()) return rule.local_key;
  return rule.key.empty() ? name.rest : rule.key;
}

std::string name_in_layer(std::string_view key, const ShardedName& sharded, const KeyRules& rules) {
  const ModelRule* const rule = rules.table->find_by_key(key, flavor_of(sharded.key, rules));
  if (rule == nullptr) return std::string(key);
  return sharded.expert ? with_expert(rule->name, *sharded.expert) : rule->name;
}

// "mtp.layers.0.mtp_model_layer.": what is before the rest of a name in its own layer; torch_dist
// calls it transformer_layer, but for one that is a stack of layers of a hybrid model, of which
// "layers.1." is before the rest, too.
struct MtpLayer {
  std::string before_in_model, before_in_store;
  std::string_view rest;
};
std::optional<MtpLayer> mtp_model_layer(std::string_view name) {
  const auto in_mtp = split_mtp_layer(name);
  if (!in_mtp) return std::nullopt;
  for (const std::string_view layer : {kMtpModelLayer, kMtpTransformerLayer}) {
    if (!in_mtp->rest.starts_with(layer)) continue;
    const std::string before = std::string(kMtpLayersPrefix) + std::to_string(in_mtp->layer) + ".";
    const std::string_view rest = in_mtp->rest.substr(layer.size());
    if (const auto inner = split_inner_layer(rest)) {
      const std::string stack(name.substr(0, name.size() - inner->rest.size()));
      return MtpLayer{stack, stack, inner->rest};
    }
    return MtpLayer{before + std::string(kMtpModelLayer),
                    before + std::string(kMtpTransformerLayer), rest};
  }
  return std::nullopt;
}

// What follows "decoder.layers.", and a layer's number if there is one.
std::optional<std::string_view> key_behind_layers(std::string_view key) {
  if (const auto in_layer = split_stack(key)) return in_layer->rest;
  if (is_stacked_key(key)) return key.substr(stack_of(key).size());
  if (const auto in_mtp = mtp_model_layer(key)) return in_mtp->rest;
  return std::nullopt;
}

}  // namespace

LayerStack stack_rules(std::string_view name, const KeyRules& rules) {
  const std::string_view prefix = stack_of(name);
  const auto known = std::ranges::find(rules.stacks, prefix, &LayerStack::prefix);
  if (known != rules.stacks.end()) return *known;
  return {std::string(prefix), rules.layer_count, rules.layers_stacked, rules.layer_norm_renamed};
}

ShardedName sharded_name(std::string_view name, const KeyRules& rules) {
  const auto in_mtp = mtp_model_layer(name);
  const auto in_layer = in_mtp ? NameInLayer{0, in_mtp->rest} : split_stack(name);
  if (!in_layer) return {std::string(name)};
  const LayerStack stack = stack_rules(in_mtp ? kLayersPrefix : in_layer->stack, rules);
  const std::string_view key = key_in_layer(*in_layer, rules, stack.layer_norm_renamed);
  ShardedName sharded;
  if (const auto expert = expert_in(name); expert && key != in_layer->rest) {
    sharded.expert = expert->number;
  }
  const bool is_stacked = stack.is_stacked && !in_mtp;
  if (is_stacked) sharded.layer = in_layer->layer;
  sharded.key = in_mtp       ? in_mtp->before_in_store + std::string(key)
                : is_stacked ? std::string(in_layer->stack).append(key)
                             : join_layer(in_layer->layer, key, in_layer->stack);
  return sharded;
}

std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules) {
  const auto key = key_behind_layers(sharded.key);
  if (!key) return sharded.key;
  const std::string name = name_in_layer(*key, sharded, rules);
  if (sharded.layer) return join_layer(*sharded.layer, name, stack_of(sharded.key));
  if (const auto in_mtp = mtp_model_layer(sharded.key)) return in_mtp->before_in_model + name;
  const auto in_layer = split_stack(sharded.key);
  return in_layer ? join_layer(in_layer->layer, name, in_layer->stack) : sharded.key;
}

StackedAxes stacked_axes(std::string_view key, const KeyRules& rules) {
  const auto rest = key_behind_layers(key);
  if (!rest) return {};
  const ModelRule* const rule = rules.table->find_by_key(*rest, flavor_of(key, rules));
  return {is_stacked_key(key), rule != nullptr && is_of_experts(*rule)};
}

std::optional<ModelRules::SegmentOfRule> segment_of_key(std::string_view key,
                                                        const KeyRules& rules) {
  if (!rules.table->is_name_of_segment(key.substr(key.rfind('.') + 1))) return std::nullopt;
  const auto rest = key_behind_layers(key);
  if (!rest) return std::nullopt;
  ModelRules::SegmentOfRule found = rules.table->find_segment(*rest, flavor_of(key, rules));
  if (found.rule == nullptr) return std::nullopt;
  found.key = key.substr(0, key.rfind('.'));
  return found;
}

bool is_stacked_key(std::string_view key) {
  const std::string_view stack = stack_of(key);
  return !stack.empty() && !split_stack(key) && key.size() > stack.size();
}

bool is_layer_key(std::string_view key) { return split_stack(key).has_value(); }

bool is_extra_state(std::string_view name) {
  return name == kExtraState || name.ends_with("._extra_state");
}

bool is_state_of_experts(std::string_view name) {
  return is_extra_state(name) && name.find(".experts.linear_fc") != name.npos;
}

TensorSharing sharing_by_rule(std::string_view name, const ckpt::Extents& shape,
                              const ModelRules& table, CutBy cut) {
  const auto found = table.find(name);
  if (!found || !segments_fit(*found->rule, shape, cut.ranks)) return {};
  return {true, split_of(*found->rule, shape, cut)};
}

}  // namespace optim

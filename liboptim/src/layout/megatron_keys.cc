#include "layout/megatron_keys.h"

#include <charconv>
#include <utility>

namespace optim {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";

// The local transformer implementation has separate layer norms, which its sharded state dict files
// under the names that TransformerEngine's fused modules have.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"},
    {"input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias"},
    {"pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"},
    {"pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"},
};

// Order of registration within a layer and around the layers. Of the local implementation it was
// measured; what TransformerEngine's fused modules add (layer_norm_*, further extra states) is from
// reading its sources: a fused module registers its layer norm before its weight.
constexpr std::string_view kLayerOrder[] = {
    "input_layernorm.weight",
    "input_layernorm.bias",
    "input_layernorm._extra_state",
    "self_attention.core_attention._extra_state",
    "self_attention.linear_proj.weight",
    "self_attention.linear_proj.bias",
    "self_attention.linear_proj._extra_state",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_qkv._extra_state",
    "self_attention.q_layernorm.weight",
    "self_attention.q_layernorm.bias",
    "self_attention.q_layernorm._extra_state",
    "self_attention.k_layernorm.weight",
    "self_attention.k_layernorm.bias",
    "self_attention.k_layernorm._extra_state",
    "pre_mlp_layernorm.weight",
    "pre_mlp_layernorm.bias",
    "pre_mlp_layernorm._extra_state",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias",
    "mlp.linear_fc1._extra_state",
    "mlp.linear_fc2.weight",
    "mlp.linear_fc2.bias",
    "mlp.linear_fc2._extra_state",
};
constexpr std::string_view kBefore[] = {
    "embedding.word_embeddings.weight",
    "embedding.position_embeddings.weight",
};
constexpr std::string_view kAfter[] = {
    "decoder.final_layernorm.weight",
    "decoder.final_layernorm.bias",
    "decoder.final_layernorm._extra_state",
    "output_layer.weight",
    kOutputExtraState,
};
constexpr uint32_t kSectionBefore = 0, kSectionLayers = 1, kSectionAfter = 2;

template <size_t kCount>
std::optional<uint32_t> place_in(const std::string_view (&names)[kCount], std::string_view name) {
  for (uint32_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return i;
  }
  return std::nullopt;
}

struct InLayer {
  uint32_t layer;
  std::string_view rest;
};

std::optional<InLayer> split_layer(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  const std::string_view after = name.substr(kLayers.size());
  uint32_t layer = 0;
  const auto [end, error] = std::from_chars(after.data(), after.data() + after.size(), layer);
  if (error != std::errc() || end == after.data() + after.size() || *end != '.') {
    return std::nullopt;
  }
  return InLayer{layer, after.substr(static_cast<size_t>(end - after.data()) + 1)};
}

std::string in_layer_name(uint32_t layer, std::string_view rest) {
  return std::string(kLayers) + std::to_string(layer) + "." + std::string(rest);
}

std::string_view fused_name(std::string_view rest, const KeyRules& rules) {
  for (const auto& [local, fused] : kRenamed) {
    if (rules.layer_norm_renamed && rest == local) return fused;
  }
  return rest;
}

std::string_view local_name(std::string_view rest, const KeyRules& rules) {
  for (const auto& [local, fused] : kRenamed) {
    if (rules.layer_norm_renamed && rest == fused) return local;
  }
  return rest;
}

}  // namespace

ShardedName sharded_name(std::string_view name, const KeyRules& rules) {
  const auto in_layer = split_layer(name);
  if (!in_layer) return {std::string(name), std::nullopt};
  const std::string_view rest = fused_name(in_layer->rest, rules);
  if (!rules.layers_stacked) return {in_layer_name(in_layer->layer, rest), std::nullopt};
  return {std::string(kLayers) + std::string(rest), in_layer->layer};
}

std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules) {
  if (sharded.layer) {
    const std::string_view rest = std::string_view(sharded.key).substr(kLayers.size());
    return in_layer_name(*sharded.layer, local_name(rest, rules));
  }
  const auto in_layer = split_layer(sharded.key);
  if (!in_layer) return sharded.key;
  return in_layer_name(in_layer->layer, local_name(in_layer->rest, rules));
}

bool is_stacked_key(std::string_view key) {
  return key.starts_with(kLayers) && !split_layer(key) && key.size() > kLayers.size();
}

bool is_layer_key(std::string_view key) { return split_layer(key).has_value(); }

std::optional<ModelPosition> model_position(std::string_view name) {
  if (const auto in_layer = split_layer(name)) {
    const auto place = place_in(kLayerOrder, in_layer->rest);
    if (!place) return std::nullopt;
    return ModelPosition{kSectionLayers, in_layer->layer, *place};
  }
  if (const auto place = place_in(kBefore, name)) return ModelPosition{kSectionBefore, 0, *place};
  if (const auto place = place_in(kAfter, name)) return ModelPosition{kSectionAfter, 0, *place};
  return std::nullopt;
}

bool is_extra_state(std::string_view name) {
  return name == kExtraState || name.ends_with("._extra_state");
}

bool is_gated_half(std::string_view name) {
  return name.ends_with(".mlp.linear_fc1.weight") || name.ends_with(".mlp.linear_fc1.bias");
}

}  // namespace optim

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_rules.h"

namespace optim {

// What is known of Megatron-Core's GPTModel: how its parameters are called in a state dict
// (`torch`) and in a sharded state dict (`torch_dist`), in which order the model registers them,
// and how tensor parallelism would split them. docs/formats/torch_dist.md and torch.md say how this
// was measured.
//
//   state dict        decoder.layers.3.input_layernorm.weight
//   sharded key       decoder.layers.self_attention.linear_qkv.layer_norm_weight, layer 3
//   not stacked       decoder.layers.3.self_attention.linear_qkv.layer_norm_weight

struct KeyRules {
  bool layer_norm_renamed = false;  // transformer_impl 'local': layer norms take the fused names
  uint32_t layer_count = 0;
  // One tensor over all layers; else, where the layers of a model differ, one for each.
  bool layers_stacked = true;
};

struct ShardedName {
  std::string key;                // without the layer where layers are stacked
  std::optional<uint32_t> layer;  // nullopt: not stacked
};

ShardedName sharded_name(std::string_view name, const KeyRules& rules);
std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules);

// True for keys that Megatron stacks over layers: decoder.layers. not followed by a layer number.
bool is_stacked_key(std::string_view key);
// True for keys of one layer: decoder.layers.3. and more.
bool is_layer_key(std::string_view key);

// nullopt for names that are not known, or of modules that are not handled yet.
std::optional<ModelPlace> model_position(std::string_view name);

// What a module keeps beside its parameters (TransformerEngine's fp8 scales; None otherwise). The
// output layer's is never sharded.
inline constexpr std::string_view kExtraState = "_extra_state";
inline constexpr std::string_view kOutputExtraState = "output_layer._extra_state";
bool is_extra_state(std::string_view name);

// linear_fc1 of a gated linear unit is stored as two halves along dimension 0 (gate, up).
bool is_gated_half(std::string_view name);

}  // namespace optim

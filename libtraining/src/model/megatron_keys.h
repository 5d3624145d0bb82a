#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <training/model_facts.h>

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
//
//   segments        decoder.layers.3.mixer.in_proj.weight
//   sharded keys    decoder.layers.3.mixer.in_proj.weight.z, ... .x, ... .B, ... .C, ... .dt
//
//   expert          decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight
//   sharded key     decoder.layers.mlp.experts.experts.linear_fc1.weight, layer 3, expert 5

struct KeyRules {
  bool layer_norm_renamed = false;  // transformer_impl 'local': layer norms take the fused names
  uint32_t layer_count = 0;
  // One tensor over all layers; else, where the layers of a model differ, one for each.
  bool layers_stacked = true;
  uint32_t expert_count = 0;
  bool experts_grouped = false;  // TEGroupedMLP numbers weights: experts.linear_fc1.weight5
  const ModelRules* table = &ModelRules::built_in();
  std::span<const LayerStack> stacks = {};  // those of which something else counts
};

// Of the stack that a name or a key of all layers is in.
LayerStack stack_rules(std::string_view name, const KeyRules& rules);

struct ShardedName {
  std::string key;                      // without the layer where layers are stacked
  std::optional<uint32_t> layer = {};   // nullopt: not stacked
  std::optional<uint32_t> expert = {};  // the same; behind the layer's axis
};

ShardedName sharded_name(std::string_view name, const KeyRules& rules);
std::string state_dict_name(const ShardedName& sharded, const KeyRules& rules);

// Of a layer of multi-token prediction as the model calls it (mtp_model_layer), and as stores do
// (transformer_layer); other names as they are.
std::string mtp_name_in_model(std::string_view name);
std::string mtp_name_in_store(std::string_view name);

// The axes that torch_dist puts in front of a tensor's own.
struct StackedAxes {
  bool layer = false, expert = false;
  size_t count() const { return size_t{layer} + size_t{expert}; }
};
StackedAxes stacked_axes(std::string_view key, const KeyRules& rules);

// Which segment of which row's tensor a key is of, with the key of the whole; nullopt: of none.
std::optional<ModelRules::SegmentOfRule> segment_of_key(std::string_view key,
                                                        const KeyRules& rules);

// True for keys that Megatron stacks over layers: decoder.layers., or another stack's prefix, not
// followed by a layer number.
bool is_stacked_key(std::string_view key);

// What a module keeps beside its parameters (TransformerEngine's fp8 scales; None otherwise). The
// output layer's is never sharded.
inline constexpr std::string_view kExtraState = "_extra_state";
inline constexpr std::string_view kOutputExtraState = "output_layer._extra_state";
bool is_extra_state(std::string_view name);

// Of a module that holds several experts (TEGroupedMLP), as it is named in the model.
bool is_state_of_experts(std::string_view name);

// What a rule says of how tensor parallel ranks share a tensor of this name; not known without one.
TensorSharing sharing_by_rule(std::string_view name, const ckpt::Extents& shape,
                              const ModelRules& table, CutBy cut);

}  // namespace optim

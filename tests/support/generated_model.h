#pragma once

#include <random>
#include <string>
#include <vector>

#include <ckpt/value_tree.h>
#include <training/filed_state.h>
#include <training/size_change.h>

#include "grid/placement.h"
#include "model/megatron_keys.h"

// Models of any shape, as a training state that refers to no file: what pure code is tested with.
namespace test {

struct ModelShape {
  uint32_t layers = 4, dense_layers = 0;  // the first ones, before those with experts
  uint32_t mtp_layers = 0, experts = 0;
  bool is_gated = false, is_tied = false, has_biases = false;
  bool is_of_engine = false;    // names of TransformerEngine, experts grouped
  bool has_own_module = false;  // mlp.own.weight in each layer, which no rule knows
  bool is_hybrid = false;       // layers of one kind each: pattern_of(), of the engine
  uint32_t heads = 12;
  uint64_t hidden = 8, ffn = 8;
  uint64_t vocabulary = 24, vocabulary_divisor = 4, vocabulary_rows = 24;
};

// Kinds of a hybrid model's layers, as Megatron writes them.
inline std::string pattern_of(const ModelShape& of) {
  std::string kinds;
  for (uint32_t i = 0; i < of.layers; ++i) kinds += (of.experts > 0 ? "MEG*-" : "M*G-")[i % 4];
  return kinds;
}

// Arguments of their modules: heads and groups that many numbers of ranks divide.
using NamedNumber = std::pair<const char*, uint64_t>;
inline std::vector<NamedNumber> hybrid_arguments(const ModelShape& of) {
  return {{"hidden_size", of.hidden},
          {"mamba_num_heads", 12},
          {"mamba_head_dim", 2},
          {"mamba_num_groups", 12},
          {"mamba_state_dim", of.hidden / 4},
          {"linear_num_key_heads", 12},
          {"linear_key_head_dim", 1},
          {"linear_num_value_heads", 12},
          {"linear_value_head_dim", of.ffn / 4}};
}

using Picker = std::mt19937_64;
inline uint32_t pick(Picker& random, uint32_t least, uint32_t most) {
  return std::uniform_int_distribution<uint32_t>(least, most)(random);
}
inline bool flip(Picker& random) { return pick(random, 0, 1) == 1; }

inline ModelShape random_shape_of_model(Picker& random) {
  ModelShape shape{.layers = pick(random, 1, 8)};
  if (flip(random)) shape.experts = pick(random, 1, 8);
  if (shape.experts > 0 && flip(random)) shape.dense_layers = pick(random, 0, shape.layers - 1);
  if (pick(random, 0, 2) == 0) shape.mtp_layers = pick(random, 1, 2);
  shape.is_gated = flip(random);
  shape.is_tied = flip(random);
  shape.has_biases = flip(random);
  shape.is_of_engine = flip(random);
  if (pick(random, 0, 3) == 0) shape.heads = pick(random, 1, 4);
  shape.hidden = 4 * pick(random, 1, 3);
  shape.ffn = 4 * pick(random, 1, 3);
  shape.vocabulary_divisor = pick(random, 1, 4);
  shape.vocabulary = pick(random, 1, 20);
  shape.vocabulary_rows = optim::padded_vocabulary(shape.vocabulary, shape.vocabulary_divisor, 1);
  return shape;
}

struct NamedShape {
  std::string name;
  ckpt::Extents shape;
};

// The parameters in the order in which Megatron registers them.
class ParamList {
 public:
  explicit ParamList(const ModelShape& of) : of_(of) {
    add("embedding.word_embeddings.weight", {of.vocabulary_rows, of.hidden});
    add("embedding.position_embeddings.weight", {6, of.hidden});
    for (uint32_t i = 0; i < of.layers; ++i) {
      const std::string layer = "decoder.layers." + std::to_string(i) + ".";
      if (of.is_hybrid) {
        add_layer_of(pattern_of(of)[i], layer);
      } else {
        add_layer(layer, i < of.dense_layers);
      }
    }
    add(of.is_hybrid ? "decoder.final_norm.weight" : "decoder.final_layernorm.weight", {of.hidden});
    for (uint32_t i = 0; i < of.mtp_layers; ++i) {
      const std::string layer = "mtp.layers." + std::to_string(i) + ".";
      add(layer + "enorm.weight", {of.hidden});
      add(layer + "hnorm.weight", {of.hidden});
      add(layer + "eh_proj.weight", {of.hidden, 2 * of.hidden});
      add_layer(layer + "mtp_model_layer.", false);
      add(layer + "final_layernorm.weight", {of.hidden});
    }
    if (!of.is_tied) add("output_layer.weight", {of.vocabulary_rows, of.hidden});
  }
  std::vector<NamedShape> take() { return std::move(params_); }

 private:
  void add(std::string name, ckpt::Extents shape) {
    params_.push_back({std::move(name), std::move(shape)});
  }

  void add_linear(const std::string& name, uint64_t rows, uint64_t columns, bool has_bias) {
    add(name + ".weight", {rows, columns});
    if (has_bias) add(name + ".bias", {rows});
  }

  // Of kind M before core 0.19.
  void add_layer_of(char kind, const std::string& layer) {
    const uint64_t hidden = of_.hidden, groups = 12 * (hidden / 4), values = 12 * (of_.ffn / 4);
    if (kind == 'M') {
      for (const char* name : {"dt_bias", "A_log", "D"}) add(layer + "mixer." + name, {12});
      add(layer + "mixer.in_proj.layer_norm_weight", {hidden});
      add(layer + "mixer.in_proj.weight", {2 * 24 + 2 * groups + 12, hidden});
      add(layer + "mixer.conv1d.weight", {24 + 2 * groups, 1, 3});
      add(layer + "mixer.conv1d.bias", {24 + 2 * groups});
      add(layer + "mixer.norm.weight", {24});
      add(layer + "mixer.out_proj.weight", {hidden, 24});
    } else if (kind == 'G') {
      const std::string attention = layer + "self_attention.";
      add(attention + "dt_bias", {12});
      add(attention + "A_log", {12});
      add(attention + "in_proj.layer_norm_weight", {hidden});
      add(attention + "in_proj.weight", {2 * 12 + 2 * values + 2 * 12, hidden});
      add(attention + "conv1d.weight", {2 * 12 + values, 1, 3});
      add(attention + "out_norm.weight", {of_.ffn / 4});
      add(attention + "out_proj.weight", {hidden, values});
    } else if (kind == '*') {
      add_attention(layer);
    } else {
      add_mlp(layer, kind == 'E');
    }
  }

  void add_layer(const std::string& layer, bool is_dense) {
    if (!of_.is_of_engine) add(layer + "input_layernorm.weight", {of_.hidden});
    add_attention(layer);
    add_mlp(layer, of_.experts > 0 && !is_dense);
  }

  void add_attention(const std::string& layer) {
    const std::string attention = layer + "self_attention.";
    add_linear(attention + "linear_proj", of_.hidden, of_.hidden, of_.has_biases);
    if (of_.is_of_engine) add(attention + "linear_qkv.layer_norm_weight", {of_.hidden});
    add_linear(attention + "linear_qkv", 3 * of_.hidden, of_.hidden, of_.has_biases);
  }

  void add_mlp(const std::string& layer, bool has_experts) {
    const uint64_t hidden = of_.hidden, up = of_.ffn * (of_.is_gated ? 2 : 1);
    const bool is_norm_fused = of_.is_of_engine && !has_experts;
    add(layer + (is_norm_fused ? "mlp.linear_fc1.layer_norm_weight" : "pre_mlp_layernorm.weight"),
        {hidden});
    if (!has_experts) {
      add_linear(layer + "mlp.linear_fc1", up, hidden, of_.has_biases);
      add_linear(layer + "mlp.linear_fc2", hidden, of_.ffn, of_.has_biases);
      if (of_.has_own_module) add(layer + "mlp.own.weight", {hidden, hidden});
      return;
    }
    add(layer + "mlp.router.weight", {of_.experts, hidden});
    if (of_.is_of_engine) {
      add_grouped(layer + "mlp.experts.linear_fc1.weight", {up, hidden});
      add_grouped(layer + "mlp.experts.linear_fc2.weight", {hidden, of_.ffn});
      return;
    }
    for (uint32_t expert = 0; expert < of_.experts; ++expert) {
      const std::string own = layer + "mlp.experts.local_experts." + std::to_string(expert) + ".";
      add_linear(own + "linear_fc1", up, hidden, false);
      add_linear(own + "linear_fc2", hidden, of_.ffn, false);
    }
  }

  void add_grouped(const std::string& name, const ckpt::Extents& shape) {
    for (uint32_t expert = 0; expert < of_.experts; ++expert) {
      add(name + std::to_string(expert), shape);
    }
  }

  const ModelShape of_;
  std::vector<NamedShape> params_;
};

inline optim::ModelFacts facts_of(const ModelShape& of) {
  optim::ModelFacts facts;
  facts.expert_count = of.experts;
  facts.attention_heads = of.heads;
  facts.gated_linear_unit = of.is_gated;
  facts.layer_norm_renamed = !of.is_of_engine;
  facts.experts_grouped = of.is_of_engine;
  facts.layers_stacked = of.dense_layers == 0 && !of.is_hybrid;
  facts.output_is_tied = of.is_tied;
  facts.vocabulary = of.vocabulary;
  facts.vocabulary_divisor = of.vocabulary_divisor;
  return facts;
}

inline std::shared_ptr<const optim::ModelRules> rules_for(const ModelShape& of) {
  ckpt::ValueTree tree;
  tree.set_root(tree.dict());
  for (const auto& [name, number] : hybrid_arguments(of)) {
    tree.put(tree.root().id(), name, tree.integer(static_cast<int64_t>(number)));
  }
  return std::make_shared<const optim::ModelRules>(
      optim::ModelRules::built_in().of_args(tree.root()));
}

// Of one rank; weights of bfloat16 without chunks.
inline optim::FiledState state_of_shape(const ModelShape& of) {
  optim::FiledState state;
  state.rules = rules_for(of);
  if (of.is_hybrid) state.grid.pipeline.hybrid_layer_pattern = pattern_of(of);
  state.facts = facts_of(of);
  state.grid.pipeline.num_layers = of.layers;
  state.grid.pipeline.mtp_num_layers = of.mtp_layers;
  for (const auto& [name, shape] : ParamList(of).take()) {
    ckpt::TensorEntry weight;
    weight.key = name;
    weight.dtype = ckpt::DType::BFloat16;
    weight.shape = shape;
    optim::TrainedParam param;
    param.weight = std::make_shared<const ckpt::TensorEntry>(std::move(weight));
    param.info.name = name;
    param.info.shape.assign(shape.begin(), shape.end());
    param.info.dtype = ckpt::DType::BFloat16;
    param.info.attributes = optim::megatron_attributes(name, shape.size());
    param.sharing = optim::sharing_by_rule(name, shape, *state.rules, {of.is_gated});
    optim::ModelEntry& entry = state.model.emplace_back();
    entry.name = name;
    entry.param = static_cast<uint32_t>(state.params.size());
    state.params.push_back(std::move(param));
  }
  return state;
}

// Sizes that a run may have, of at most `ranks_max` ranks; whether the model fits is not asked.
inline optim::SizeChange random_sizes(Picker& random, const ModelShape& of, uint32_t ranks_max) {
  while (true) {
    optim::ParallelSizes sizes{.data_parallel = pick(random, 1, 5),
                               .context_parallel = pick(random, 0, 3) == 0 ? 2u : 1u,
                               .tensor_parallel = pick(random, 1, 4),
                               .pipeline_parallel = pick(random, 1, 4),
                               .virtual_pipeline_parallel = pick(random, 1, 2)};
    sizes.expert_tensor_parallel = flip(random) ? sizes.tensor_parallel : pick(random, 1, 2);
    if (of.experts > 0) sizes.expert_parallel = pick(random, 1, 4);
    if (sizes.world() > ranks_max) continue;
    return {.data_parallel = sizes.data_parallel,
            .tensor_parallel = sizes.tensor_parallel,
            .pipeline_parallel = sizes.pipeline_parallel,
            .virtual_pipeline_parallel = sizes.virtual_pipeline_parallel,
            .context_parallel = sizes.context_parallel,
            .expert_parallel = sizes.expert_parallel,
            .expert_tensor_parallel = sizes.expert_tensor_parallel,
            .world_size = {},
            .pipeline_layout = {},
            .first_stage_layers = {},
            .last_stage_layers = {},
            .vocabulary = {}};
  }
}

// Decoder layers dealt over the stages at random, embedding first, MTP and loss last.
inline std::string random_layout(Picker& random, const ModelShape& of, uint32_t stages) {
  std::vector<uint32_t> layers(stages, 0);
  for (uint32_t i = 0; i < of.layers; ++i) ++layers[pick(random, 0, stages - 1)];
  std::string text = "E";
  for (uint32_t stage = 0; stage < stages; ++stage) {
    text += (stage == 0 ? "" : "|") + std::string(layers[stage], 't');
  }
  return text + std::string(of.mtp_layers, 'm') + "L";
}

}  // namespace test

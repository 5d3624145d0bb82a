// Parameters that are gone from a model and its optimizer alike: nothing refers to them any more,
// but layers of one kind have the same ones.
#include "verify/layer_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "model/model_rules.h"
#include "model/stage_names.h"
#include "verify/args_check.h"

namespace optim {
namespace {

// What a layer computes one after the other. A layer may lack one of them as a whole.
enum class Block : uint8_t { Attention, Mlp, Expert };

struct Instance {
  uint32_t layer = 0, expert = 0;
  auto operator<=>(const Instance&) const = default;
};

// Of one instance, by the rules' names.
struct Members {
  std::set<std::string_view> rules;
  bool has_module = false;  // more than the norm before it
};

using Instances = std::map<Instance, Members>;

std::string_view module_of(Block block) {
  return block == Block::Attention ? "self_attention." : "mlp.";
}

Block block_of(const ModelRule& rule, bool is_of_expert) {
  if (is_of_expert) return Block::Expert;
  const bool is_attention =
      rule.name.starts_with("self_attention.") || rule.name.starts_with("input_layernorm.");
  return is_attention ? Block::Attention : Block::Mlp;
}

std::map<Block, Instances> blocks_of(const TrainingState& state) {
  std::map<Block, Instances> blocks;
  for (const TrainedParam& param : state.params) {
    const auto known = ModelRules::built_in().find(param.info.name);
    if (!known || !split_layer(param.info.name) || known->rule->buffer) continue;
    const auto expert = expert_in(param.info.name);
    const Block block = block_of(*known->rule, expert.has_value());
    Members& members = blocks[block][{known->place.layer, expert ? expert->number : 0}];
    members.rules.insert(known->rule->name);
    members.has_module |= known->rule->name.starts_with(module_of(block));
  }
  return blocks;
}

std::string name_of(std::string_view rule, const Instance& instance) {
  std::string name = std::string(kLayersPrefix) + std::to_string(instance.layer) + '.';
  const size_t number = rule.find("{expert}");
  if (number == std::string_view::npos) return name.append(rule);
  constexpr size_t kLength = std::string_view("{expert}").size();
  return name.append(rule.substr(0, number))
      .append(std::to_string(instance.expert))
      .append(rule.substr(number + kLength));
}

std::optional<LostParam> lost_of(Block block, const Instances& instances) {
  for (const auto& [instance, members] : instances) {
    if (!members.has_module) continue;
    for (const auto& [other, has] : instances) {
      const bool is_part = has.rules.size() > members.rules.size() &&
                           std::ranges::includes(has.rules, members.rules);
      if (!is_part) continue;
      const auto lost = std::ranges::find_if(
          has.rules, [&](std::string_view rule) { return !members.rules.contains(rule); });
      const std::string layer = "layer " + std::to_string(other.layer);
      return LostParam{name_of(*lost, instance),
                       block == Block::Expert
                           ? "expert " + std::to_string(other.expert) + " of " + layer + " has it"
                           : layer + " has it"};
    }
  }
  return std::nullopt;
}

// Parameters that Megatron's modules have together: where a layer has all of the first, it has one
// of the second.
struct Companions {
  std::vector<std::string_view> present, expected;
};

// Of layers of which every parameter is Megatron's own.
const std::vector<Companions>& companions() {
  static const std::vector<Companions> rows = {
      {{"self_attention.linear_qkv.weight"}, {"self_attention.linear_proj.weight"}},
      {{"self_attention.linear_kv_up_proj.weight"}, {"self_attention.linear_proj.weight"}},
      {{"self_attention.linear_kv_up_proj.weight"},
       {"self_attention.linear_q_proj.weight", "self_attention.linear_q_up_proj.weight"}},
      {{"self_attention.linear_kv_up_proj.weight"}, {"self_attention.linear_kv_down_proj.weight"}},
      {{"self_attention.linear_kv_down_proj.weight"}, {"self_attention.linear_kv_up_proj.weight"}},
      {{"self_attention.linear_q_up_proj.weight"}, {"self_attention.linear_q_down_proj.weight"}},
      {{"self_attention.linear_q_down_proj.weight"}, {"self_attention.linear_q_up_proj.weight"}},
      {{"self_attention.linear_proj.weight"},
       {"self_attention.linear_qkv.weight", "self_attention.linear_kv_up_proj.weight"}},
      {{"self_attention.k_layernorm.weight"}, {"self_attention.q_layernorm.weight"}},
      {{"self_attention.q_layernorm.weight", "self_attention.linear_qkv.weight"},
       {"self_attention.k_layernorm.weight"}},
      {{"self_attention.linear_proj.bias", "self_attention.linear_qkv.weight"},
       {"self_attention.linear_qkv.bias"}},
      {{"mlp.linear_fc1.weight"}, {"mlp.linear_fc2.weight"}},
      {{"mlp.linear_fc2.weight"}, {"mlp.linear_fc1.weight"}},
      {{"mlp.linear_fc1.bias"}, {"mlp.linear_fc2.bias"}},
      {{"mlp.linear_fc2.bias"}, {"mlp.linear_fc1.bias"}},
      {{"mlp.linear_fc2.bias", "self_attention.linear_proj.weight"},
       {"self_attention.linear_proj.bias"}},
      {{"mlp.shared_experts.linear_fc1.weight"}, {"mlp.shared_experts.linear_fc2.weight"}},
      {{"mlp.shared_experts.linear_fc2.weight"}, {"mlp.shared_experts.linear_fc1.weight"}},
      {{"mlp.experts.local_experts.{expert}.linear_fc1.weight"},
       {"mlp.experts.local_experts.{expert}.linear_fc2.weight"}},
      {{"mlp.experts.local_experts.{expert}.linear_fc2.weight"},
       {"mlp.experts.local_experts.{expert}.linear_fc1.weight"}},
      {{"mlp.experts.linear_fc1.weight{expert}"}, {"mlp.experts.linear_fc2.weight{expert}"}},
      {{"mlp.experts.linear_fc2.weight{expert}"}, {"mlp.experts.linear_fc1.weight{expert}"}},
  };
  return rows;
}

// The same for norms, which a model has everywhere or nowhere.
const std::vector<Companions>& norms() {
  static const std::vector<Companions> rows = {
      {{"self_attention.linear_qkv.weight"},
       {"input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"}},
      {{"mlp.linear_fc1.weight"}, {"pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"}},
      {{"mlp.router.weight"}, {"pre_mlp_layernorm.weight"}},
  };
  return rows;
}

// And for their biases.
const std::vector<Companions>& norm_biases() {
  static const std::vector<Companions> rows = {
      {{"input_layernorm.weight"}, {"input_layernorm.bias"}},
      {{"pre_mlp_layernorm.weight"}, {"pre_mlp_layernorm.bias"}},
      {{"self_attention.linear_qkv.layer_norm_weight"},
       {"self_attention.linear_qkv.layer_norm_bias"}},
      {{"mlp.linear_fc1.layer_norm_weight"}, {"mlp.linear_fc1.layer_norm_bias"}},
  };
  return rows;
}

std::optional<LostParam> lost_companion(const std::vector<Companions>& rows,
                                        const Instance& instance,
                                        const std::set<std::string_view>& names) {
  const auto is_there = [&](std::string_view name) { return names.contains(name); };
  for (const Companions& row : rows) {
    const bool lacks =
        std::ranges::all_of(row.present, is_there) && std::ranges::none_of(row.expected, is_there);
    if (!lacks) continue;
    return LostParam{name_of(row.expected.front(), instance),
                     "layer " + std::to_string(instance.layer) + " has " +
                         name_of(row.present.front(), instance)};
  }
  return std::nullopt;
}

constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";
constexpr std::string_view kPositions = "embedding.position_embeddings.weight";
constexpr std::string_view kNorm = "decoder.final_layernorm.weight";
constexpr std::string_view kNormBias = "decoder.final_layernorm.bias";
constexpr std::string_view kOutput = "output_layer.weight";

struct Model {
  std::set<std::string_view> names;
  std::map<Instance, std::set<std::string_view>> layers;  // and experts; the rules' names
  std::set<uint32_t> foreign_layers;                      // with parameters that no rule knows
};

Model model_of(const TrainingState& state) {
  Model model;
  for (const TrainedParam& param : state.params) {
    const std::string_view name = param.info.name;
    model.names.insert(name);
    const auto in_layer = split_layer(name);
    if (!in_layer) continue;
    const auto known = ModelRules::built_in().find(name);
    if (!known) {
      model.foreign_layers.insert(in_layer->layer);
      continue;
    }
    const auto expert = expert_in(name);
    model.layers[{in_layer->layer, expert ? expert->number : 0}].insert(known->rule->name);
  }
  return model;
}

std::optional<LostParam> lost_in_layers(const Model& model) {
  for (const auto& [instance, names] : model.layers) {
    if (model.foreign_layers.contains(instance.layer)) continue;
    if (auto lost = lost_companion(companions(), instance, names)) return lost;
    if (!model.names.contains(kNorm)) continue;
    if (auto lost = lost_companion(norms(), instance, names)) return lost;
    if (!model.names.contains(kNormBias)) continue;
    if (auto lost = lost_companion(norm_biases(), instance, names)) return lost;
  }
  return std::nullopt;
}

std::optional<LostParam> lost_router(const Model& model) {
  for (const auto& [instance, names] : model.layers) {
    const bool has_expert = std::ranges::any_of(names, [](std::string_view name) {
      return name.find("{expert}") != std::string_view::npos;
    });
    if (!has_expert || model.foreign_layers.contains(instance.layer)) continue;
    const auto layer = model.layers.find({instance.layer, 0});
    constexpr std::string_view kRouter = "mlp.router.weight";
    if (layer != model.layers.end() && layer->second.contains(kRouter)) continue;
    return LostParam{name_of(kRouter, instance),
                     "layer " + std::to_string(instance.layer) + " has experts"};
  }
  return std::nullopt;
}

bool is_true(const TrainingState& state, std::string_view arg) {
  const auto value = state.args().find(arg);
  return value && value->is(ckpt::Kind::Bool) && value->as_bool();
}

bool has_learned_positions(const TrainingState& state) {
  const auto kind = state.args().find("position_embedding_type");
  return kind && kind->is(ckpt::Kind::Str) && kind->text() == "learned_absolute";
}

// A GPT model of Megatron's own modules: of others nothing is known around the layers (Mamba has
// decoder.final_norm, a reward model another head).
bool is_gpt(const Model& model) {
  const auto is_known = [](std::string_view name) {
    constexpr std::string_view kAround[] = {kWordEmbeddings, kPositions, kNorm,
                                            kNormBias,       kOutput,    "output_layer.bias"};
    return split_layer(name) || split_mtp_layer(name) ||
           std::ranges::find(kAround, name) != std::end(kAround);
  };
  const bool has_end = model.names.contains(kWordEmbeddings) || model.names.contains(kNorm) ||
                       model.names.contains(kOutput);
  return has_end && !model.layers.empty() && model.foreign_layers.empty() &&
         std::ranges::all_of(model.names, is_known);
}

// Of what stands around its layers.
std::optional<LostParam> lost_around_layers(const TrainingState& state, const Model& model) {
  if (!is_gpt(model) || state.grid.pipeline.num_layers == 0) return std::nullopt;
  const bool has_norms = std::ranges::any_of(model.layers, [](const auto& layer) {
    return layer.second.contains("input_layernorm.weight") ||
           layer.second.contains("self_attention.linear_qkv.layer_norm_weight");
  });
  for (const auto& [name, is_expected, reason] :
       {std::tuple(kWordEmbeddings, true, "a GPT model has it"),
        std::tuple(kNorm, has_norms, "the layers have norms"),
        std::tuple(kOutput, is_true(state, "untie_embeddings_and_output_weights"),
                   "args say that it is not the embeddings' weight"),
        std::tuple(kPositions, has_learned_positions(state), "args say that it is learned")}) {
    if (is_expected && !model.names.contains(name)) return LostParam{std::string(name), reason};
  }
  return std::nullopt;
}

}  // namespace

std::optional<LostParam> lost_param(const TrainingState& state) {
  if (layers_are_described(state)) return std::nullopt;
  for (const auto& [block, instances] : blocks_of(state)) {
    if (auto lost = lost_of(block, instances)) return lost;
  }
  const Model model = model_of(state);
  if (auto lost = lost_in_layers(model)) return lost;
  if (auto lost = lost_router(model)) return lost;
  return lost_around_layers(state, model);
}

void check_layers(const TrainingState& state, VerifyReport& report) {
  const auto lost = lost_param(state);
  if (!lost) return;
  report.findings.findings.push_back({ckpt::CheckKind::Meaning,
                                      ckpt::Severity::Damage,
                                      {.file = {}, .key = lost->name},
                                      "is missing from the model: " + lost->reason,
                                      "the checkpoint was written without it, or lost it"});
}

}  // namespace optim

// Parameters that are gone from a model and its optimizer alike: nothing refers to them any more,
// but layers of one kind have the same ones.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "verify/model_args.h"

namespace optim {
namespace {

// A parameter that the rest of a model says it should have.
struct LostParam {
  std::string name;    // decoder.layers.1.self_attention.linear_proj.weight
  std::string reason;  // "layer 0 has it"
};

// By the rules' names.
using Names = std::set<std::string_view>;

// A layer without its experts, or one expert.
struct Instance {
  uint32_t layer = 0;
  std::optional<uint32_t> expert;
  auto operator<=>(const Instance&) const = default;
};
using Instances = std::map<Instance, Names>;

struct Model {
  std::set<std::string_view> names;
  Instances instances;
  std::set<uint32_t> foreign_layers;  // with parameters that no rule knows
  bool shares_indexers = false;       // some layers take what the indexer of one before them found
};

Model model_of(const FiledState& state) {
  Model model;
  model.shares_indexers = StatedArgs(state.args()).size("dsa_indexer_topk_freq").value_or(1) > 1;
  for (const TrainedParam& param : state.params) {
    const std::string_view name = param.info.name;
    model.names.insert(name);
    const auto in_layer = split_layer(name);
    if (!in_layer) continue;
    const auto known = ModelRules::built_in().find(name);
    if (!known) {
      model.foreign_layers.insert(in_layer->layer);
    } else if (!known->rule->buffer) {
      const auto expert = expert_in(name);
      const auto number = expert ? std::optional(expert->number) : std::nullopt;
      model.instances[{in_layer->layer, number}].insert(known->rule->name);
    }
  }
  return model;
}

std::string name_of(std::string_view rule, const Instance& instance) {
  return join_layer(instance.layer, with_expert(rule, instance.expert.value_or(0)));
}

std::string text_of(const Instance& instance) {
  const std::string layer = "layer " + std::to_string(instance.layer);
  return instance.expert ? "expert " + std::to_string(*instance.expert) + " of " + layer : layer;
}

// What a layer computes one after the other; it may lack one of them as a whole.
enum class Block : uint8_t { Attention, SharedIndexer, Mlp, Expert };

Block block_of(std::string_view rule, const Model& model) {
  const bool is_indexer = rule.starts_with("self_attention.core_attention.indexer.");
  if (is_indexer && model.shares_indexers) return Block::SharedIndexer;
  const bool is_attention =
      rule.starts_with("self_attention.") || rule.starts_with("input_layernorm.");
  return is_attention ? Block::Attention : Block::Mlp;
}

// More than the norm before it.
bool is_of_module(Block block, std::string_view rule) {
  const bool is_mlp = block == Block::Mlp || block == Block::Expert;
  return rule.starts_with(is_mlp ? "mlp." : "self_attention.");
}

Instances instances_with(Block block, const Model& model) {
  Instances found;
  for (const auto& [instance, names] : model.instances) {
    if (instance.expert.has_value() != (block == Block::Expert)) continue;
    Names own;
    for (const std::string_view rule : names) {
      if (block == Block::Expert || block == block_of(rule, model)) own.insert(rule);
    }
    const auto is_own = [&](std::string_view rule) { return is_of_module(block, rule); };
    if (std::ranges::any_of(own, is_own)) found.emplace(instance, std::move(own));
  }
  return found;
}

// Instances are many, different sets of names few.
std::optional<LostParam> lost_among(const Instances& instances) {
  std::map<Names, Instance> known;
  std::vector<std::pair<Instance, const Names*>> kinds;  // each with the first that has it
  for (const auto& [instance, names] : instances) {
    if (known.try_emplace(names, instance).second) kinds.emplace_back(instance, &names);
  }
  for (const auto& [instance, names] : kinds) {
    for (const auto& [other, has] : kinds) {
      if (has->size() <= names->size() || !std::ranges::includes(*has, *names)) continue;
      const auto lost = std::ranges::find_if(
          *has, [&own = *names](std::string_view rule) { return !own.contains(rule); });
      return LostParam{name_of(*lost, instance), text_of(other) + " has it"};
    }
  }
  return std::nullopt;
}

// Parameters that Megatron's modules have together: where a layer has all of the first, it has one
// of the second.
struct Companions {
  std::vector<std::string_view> present, expected;
  bool is_mutual = false;  // and the other way round
};

constexpr std::string_view kQueryNorm = "self_attention.q_layernorm.weight",
                           kKeyNorm = "self_attention.k_layernorm.weight",
                           kMlpSecondBias = "mlp.linear_fc2.bias";

// Of layers of which every parameter is Megatron's own.
const std::vector<Companions>& companions() {
  static const std::vector<Companions> rows = {
      {{kLinearQkv}, {kLinearProj}},
      {{kLatentKvUp}, {kLinearProj}},
      {{kLatentKvUp},
       {"self_attention.linear_q_proj.weight", "self_attention.linear_q_up_proj.weight"}},
      {{kLatentKvUp}, {"self_attention.linear_kv_down_proj.weight"}, true},
      {{"self_attention.linear_q_up_proj.weight"},
       {"self_attention.linear_q_down_proj.weight"},
       true},
      {{kLinearProj}, {kLinearQkv, kLatentKvUp}},
      {{kKeyNorm}, {kQueryNorm}},
      {{kQueryNorm, kLinearQkv}, {kKeyNorm}},
      {{"self_attention.linear_proj.bias", kLinearQkv}, {"self_attention.linear_qkv.bias"}},
      {{kMlpFirst}, {"mlp.linear_fc2.weight"}, true},
      {{"mlp.linear_fc1.bias"}, {kMlpSecondBias}, true},
      {{kMlpSecondBias, kLinearProj}, {"self_attention.linear_proj.bias"}},
      {{"mlp.shared_experts.linear_fc1.weight"}, {"mlp.shared_experts.linear_fc2.weight"}, true},
      {{"mlp.experts.local_experts.{expert}.linear_fc1.weight"},
       {"mlp.experts.local_experts.{expert}.linear_fc2.weight"},
       true},
      {{"mlp.experts.linear_fc1.weight{expert}"}, {"mlp.experts.linear_fc2.weight{expert}"}, true},
  };
  return rows;
}

// The same for norms, which a model has everywhere or nowhere.
const std::vector<Companions>& norms() {
  static const std::vector<Companions> rows = {
      {{kLinearQkv}, {"input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"}},
      {{kMlpFirst}, {"pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"}},
      {{kRouterWeight}, {"pre_mlp_layernorm.weight"}},
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
                                        const Instance& instance, const Names& names) {
  const auto is_there = [&](std::string_view name) { return names.contains(name); };
  for (const auto& [first, second, is_mutual] : rows) {
    for (const bool is_turned : {false, true}) {
      const auto &present = is_turned ? second : first, &expected = is_turned ? first : second;
      const bool lacks = (is_mutual || !is_turned) && std::ranges::all_of(present, is_there) &&
                         std::ranges::none_of(expected, is_there);
      if (!lacks) continue;
      return LostParam{
          name_of(expected.front(), instance),
          "layer " + std::to_string(instance.layer) + " has " + name_of(present.front(), instance)};
    }
  }
  return std::nullopt;
}

constexpr std::string_view kPositions = "embedding.position_embeddings.weight";
constexpr std::string_view kNorm = "decoder.final_layernorm.weight";
constexpr std::string_view kNormBias = "decoder.final_layernorm.bias";

std::optional<LostParam> lost_in_layers(const Model& model) {
  for (const auto& [instance, names] : model.instances) {
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
  for (const auto& [instance, names] : model.instances) {
    if (!instance.expert || model.foreign_layers.contains(instance.layer)) continue;
    const auto layer = model.instances.find({instance.layer, std::nullopt});
    if (layer != model.instances.end() && layer->second.contains(kRouterWeight)) continue;
    return LostParam{name_of(kRouterWeight, instance),
                     "layer " + std::to_string(instance.layer) + " has experts"};
  }
  return std::nullopt;
}

// A GPT model of Megatron's own modules: of others nothing is known around the layers (Mamba has
// decoder.final_norm, a reward model another head).
bool is_gpt(const Model& model) {
  const auto is_known = [](std::string_view name) {
    constexpr std::string_view kAround[] = {kWordEmbeddings, kPositions,   kNorm,
                                            kNormBias,       kOutputLayer, "output_layer.bias"};
    return split_layer(name) || split_mtp_layer(name) ||
           std::ranges::find(kAround, name) != std::end(kAround);
  };
  const bool has_end = model.names.contains(kWordEmbeddings) || model.names.contains(kNorm) ||
                       model.names.contains(kOutputLayer);
  return has_end && !model.instances.empty() && model.foreign_layers.empty() &&
         std::ranges::all_of(model.names, is_known);
}

// Of what stands around its layers.
std::optional<LostParam> lost_around_layers(const FiledState& state, const Model& model) {
  if (!is_gpt(model) || state.grid.pipeline.num_layers == 0) return std::nullopt;
  const bool has_norms = std::ranges::any_of(model.instances, [](const auto& instance) {
    return instance.second.contains("input_layernorm.weight") ||
           instance.second.contains("self_attention.linear_qkv.layer_norm_weight");
  });
  const StatedArgs args(state.args());
  for (const auto& [name, is_expected, reason] :
       {std::tuple(kWordEmbeddings, true, "a GPT model has it"),
        std::tuple(kNorm, has_norms, "the layers have norms"),
        std::tuple(
            kOutputLayer, args.is_set("untie_embeddings_and_output_weights"),
            "args.untie_embeddings_and_output_weights says that it is not the embeddings' weight"),
        std::tuple(kPositions, args.word("position_embedding_type") == "learned_absolute",
                   "args.position_embedding_type says that it is learned")}) {
    if (is_expected && !model.names.contains(name)) return LostParam{std::string(name), reason};
  }
  return std::nullopt;
}

std::optional<LostParam> lost_param(const FiledState& state) {
  if (layers_are_described(state)) return std::nullopt;
  const Model model = model_of(state);
  for (const Block block : {Block::Attention, Block::SharedIndexer, Block::Mlp, Block::Expert}) {
    if (auto lost = lost_among(instances_with(block, model))) return lost;
  }
  if (auto lost = lost_in_layers(model)) return lost;
  if (auto lost = lost_router(model)) return lost;
  return lost_around_layers(state, model);
}

}  // namespace

void check_layers(const FiledState& state, VerifyReport& report) {
  const auto lost = lost_param(state);
  if (!lost) return;
  report.find({.file = {}, .key = lost->name}, "is missing from the model: " + lost->reason,
              "the checkpoint was written without it, or lost it");
}

}  // namespace optim

#include <algorithm>
#include <array>
#include <utility>

#include "args/run_args.h"
#include "parallel/stages.h"
#include "verify/model_args.h"

namespace optim {
namespace {

using Decides = ContradictedArg::Decides;

constexpr std::string_view kSharedFirst = "mlp.shared_experts.linear_fc1.weight";

// Whether args say that layers have what an argument decides.
using Stated = std::optional<bool> (*)(const StatedArgs& args, std::string_view name);

std::optional<bool> by_flag(const StatedArgs& args, std::string_view name) {
  return args.flag(name);
}

std::optional<bool> by_number(const StatedArgs& args, std::string_view name) {
  return args.is_number(name);
}

// None is a model without experts, whose layers have no router.
std::optional<bool> by_none(const StatedArgs& args, std::string_view name) {
  return args.is_number(name) == false ? std::optional(false) : std::nullopt;
}

std::optional<bool> has_qkv_bias(const StatedArgs& args, std::string_view name) {
  // With add_bias_linear linear_qkv has one, whatever this argument says.
  return args.flag("add_bias_linear").value_or(true) ? std::nullopt : args.flag(name);
}

std::optional<bool> has_query_norm(const StatedArgs& args, std::string_view name) {
  return args.is_set("qk_l2_norm") ? std::nullopt : args.flag(name);  // which has no weights
}

std::optional<bool> has_norm_bias(const StatedArgs& args, std::string_view name) {
  const auto kind = args.word(name);
  if (kind == "LayerNorm") return true;
  return kind == "RMSNorm" ? std::optional(false) : std::nullopt;
}

std::optional<bool> has_learned_offset(const StatedArgs& args, std::string_view name) {
  const auto kind = args.word(name);
  return kind ? std::optional(*kind == "learnable") : std::nullopt;
}

// A layer with one of `beside` has `tensor`, or `own` instead, where args say so, and else neither.
struct Presence {
  std::string_view arg;
  std::array<std::string_view, 2> beside;
  std::string_view tensor;
  Stated stated;
  Decides decides = Decides::Modules;
  std::string_view own = {};
};

constexpr std::string_view kFusedNorm = "self_attention.linear_qkv.layer_norm_weight";
constexpr Presence kPresences[] = {
    {"multi_latent_attention", {kLinearQkv, kLatentKvUp}, kLatentKvUp, by_flag, Decides::Cut},
    {"num_experts", {kRouterWeight, kMlpFirst}, kRouterWeight, by_none, Decides::Cut},
    {"add_bias_linear", {kLinearProj}, "self_attention.linear_proj.bias", by_flag},
    {"add_bias_linear", {kMlpFirst}, "mlp.linear_fc1.bias", by_flag},
    {"add_qkv_bias", {kLinearQkv}, "self_attention.linear_qkv.bias", has_qkv_bias},
    {"qk_layernorm", {kLinearQkv}, "self_attention.q_layernorm.weight", has_query_norm},
    {"qk_layernorm",
     {kLatentKvUp},
     "self_attention.linear_kv_up_proj.layer_norm_weight",
     has_query_norm,
     Decides::Modules,
     "self_attention.kv_layernorm.weight"},
    {"normalization", {"input_layernorm.weight"}, "input_layernorm.bias", has_norm_bias},
    {"normalization", {kFusedNorm}, "self_attention.linear_qkv.layer_norm_bias", has_norm_bias},
    {"normalization", {"pre_mlp_layernorm.weight"}, "pre_mlp_layernorm.bias", has_norm_bias},
    {"normalization",
     {"mlp.linear_fc1.layer_norm_weight"},
     "mlp.linear_fc1.layer_norm_bias",
     has_norm_bias},
    {"softmax_type",
     {kLinearQkv},
     "self_attention.core_attention.softmax_offset",
     has_learned_offset},
    {"q_lora_rank", {kLatentKvUp}, "self_attention.linear_q_down_proj.weight", by_number},
    {"moe_shared_expert_intermediate_size", {kRouterWeight}, kSharedFirst, by_number},
    {"moe_router_enable_expert_bias", {kRouterWeight}, "mlp.router.expert_bias", by_flag},
    {"moe_shared_expert_gate", {kSharedFirst}, "mlp.shared_experts.gate_weight", by_flag},
};

std::optional<ContradictedArg> of_presence(const Presence& row, const KnownLayer& layer,
                                           const StatedArgs& args) {
  const auto stated = row.stated(args, row.arg);
  const auto beside =
      std::ranges::find_if(row.beside, [&](std::string_view name) { return layer.has(name); });
  const std::string_view tensor = layer.has(row.own) ? row.own : row.tensor;
  if (!stated || beside == row.beside.end() || *stated == layer.has(tensor)) return std::nullopt;
  return contradicted(
      row.arg, args.text(row.arg),
      layer.name_of(tensor) + (*stated ? " is not beside " + layer.name_of(*beside) : " is there"),
      row.decides);
}

struct Width {
  std::string_view rule;
  size_t axis;
  std::string_view arg;
  Decides decides = Decides::Shapes;
};

constexpr Width kWidths[] = {
    {"mlp.linear_fc2.weight", 1, "ffn_hidden_size"},
    {"mlp.shared_experts.linear_fc2.weight", 1, "moe_shared_expert_intermediate_size"},
    {kRouterWeight, 0, "num_experts", Decides::Cut},
};

std::optional<ContradictedArg> of_width(const Width& row, const KnownLayer& layer,
                                        const StatedArgs& args) {
  const auto stated = args.size(row.arg);
  const uint64_t found = layer.size(row.rule, row.axis);
  if (!stated || found == 0 || *stated == found) return std::nullopt;
  return contradicted(row.arg, args.text(row.arg),
                      has_size(layer.name_of(row.rule), found, row.axis), row.decides);
}

// Without a size of their own experts are as wide as an MLP.
std::optional<ContradictedArg> of_expert(const KnownLayer& layer, const StatedArgs& args) {
  if (layer.expert == nullptr || layer.expert->weight->shape.size() != 2) return std::nullopt;
  const bool is_own = args.size("moe_ffn_hidden_size").has_value();
  const char* const arg = is_own ? "moe_ffn_hidden_size" : "ffn_hidden_size";
  const uint64_t found = layer.expert->weight->shape[1];
  const auto stated = args.size(arg);
  if (!stated || found == 0 || *stated == found) return std::nullopt;
  return contradicted(arg, args.text(arg),
                      has_size(layer.expert->info.name, found, 1) +
                          (is_own ? "" : ", and args.moe_ffn_hidden_size is not set"),
                      Decides::Shapes);
}

// The pattern of a hybrid model's layers, which says what each is.
struct StatedPattern {
  std::string_view name, text;
};
std::optional<StatedPattern> stated_pattern(const StatedArgs& args) {
  for (const std::string_view name : kHybridPatterns) {
    if (const auto text = args.word(name)) return StatedPattern{name, *text};
  }
  return std::nullopt;
}

// What tells layers of each kind.
struct KindOfLayer {
  char kind;
  std::string_view tensor;
};
constexpr KindOfLayer kKinds[] = {{'M', "mixer.in_proj.weight"},
                                  {'G', "self_attention.in_proj.weight"},
                                  {'*', kLinearQkv},
                                  {'+', kLatentKvUp},
                                  {'-', kMlpFirst},
                                  {'E', kRouterWeight}};

std::optional<ContradictedArg> of_pattern(const KnownLayer& layer, const StatedArgs& args) {
  const auto pattern = stated_pattern(args);
  if (!pattern || !layer.decoder) return std::nullopt;
  const std::string kinds = parse_hybrid_pattern(pattern->text).kinds;
  if (*layer.decoder >= kinds.size()) return std::nullopt;
  const auto kind = std::ranges::find(kKinds, kinds[*layer.decoder], &KindOfLayer::kind);
  if (kind == std::end(kKinds) || layer.has(kind->tensor)) return std::nullopt;
  return ContradictedArg{std::string(pattern->name),
                         "makes layer " + std::to_string(*layer.decoder) + " one of kind '" +
                             std::string(1, kind->kind) + "', but " + layer.name_of(kind->tensor) +
                             " is not there",
                         Decides::Modules};
}

// Layer by layer, as get_gpt_decoder_block_spec has it, which does not make hybrid models.
std::optional<bool> has_experts_by_frequency(uint32_t layer, const StatedArgs& args) {
  if (stated_pattern(args)) return std::nullopt;
  const auto frequency = args.find("moe_layer_freq");
  if (!frequency || !args.size("num_experts")) return std::nullopt;
  if (const auto every = args.size("moe_layer_freq")) return layer % *every == 0;
  if (!frequency->is(ckpt::Kind::List) || layer >= frequency->size()) return std::nullopt;
  const ckpt::Value own = (*frequency)[layer];
  return own.is(ckpt::Kind::Int) ? std::optional(own.as_int() != 0) : std::nullopt;
}

std::optional<ContradictedArg> of_frequency(const KnownLayer& layer, const StatedArgs& args) {
  if (!layer.decoder || (!layer.has(kRouterWeight) && !layer.has(kMlpFirst))) return std::nullopt;
  const auto stated = has_experts_by_frequency(*layer.decoder, args);
  if (!stated || *stated == layer.has(kRouterWeight)) return std::nullopt;
  return ContradictedArg{"moe_layer_freq",
                         std::string(*stated ? "gives layer " : "gives no experts to layer ") +
                             std::to_string(*layer.decoder) +
                             (*stated ? " experts, but " + layer.name_of(kMlpFirst)
                                      : ", but " + layer.name_of(kRouterWeight)) +
                             " is there",
                         Decides::Cut};
}

std::optional<ContradictedArg> of_hybrid(const KnownLayer& layer, const StatedArgs& args) {
  const bool is_both = layer.has(kLinearProj) && (layer.has(kMlpFirst) || layer.has(kRouterWeight));
  if (!is_both || !args.is_set("is_hybrid_model")) return std::nullopt;
  return contradicted("is_hybrid_model", "True",
                      layer.prefix +
                          "* has attention and an MLP, which a hybrid model has in "
                          "layers of their own",
                      Decides::Modules);
}

// A number of experts that a model without any has: a layer of it may still be dense.
std::optional<ContradictedArg> of_dense_model(const std::vector<KnownLayer>& layers,
                                              const StatedArgs& args) {
  const auto stated = args.size("num_experts");
  if (stated_pattern(args)) return std::nullopt;  // which may give experts to no layer
  const auto has_experts = [](const KnownLayer& layer) {
    return layer.has(kRouterWeight) || layer.expert != nullptr;
  };
  const auto should_have = [&](const KnownLayer& layer) {
    return layer.has(kMlpFirst) &&
           (!layer.decoder || has_experts_by_frequency(*layer.decoder, args).value_or(true));
  };
  const bool is_dense =
      std::ranges::none_of(layers, has_experts) && std::ranges::any_of(layers, should_have);
  if (!stated || !is_dense) return std::nullopt;
  return contradicted("num_experts", args.text("num_experts"), "the model has no experts");
}

}  // namespace

std::vector<ContradictedArg> contradicted_modules(const std::vector<KnownLayer>& layers,
                                                  const StatedArgs& args) {
  ContradictedArgs found;
  auto dense = of_dense_model(layers, args);
  const bool is_dense = dense.has_value();
  found.add(std::move(dense));
  for (const KnownLayer& layer : layers) {
    for (const Presence& row : kPresences) found.add(of_presence(row, layer, args));
    for (const Width& row : kWidths) found.add(of_width(row, layer, args));
    found.add(of_expert(layer, args));
    if (!is_dense) found.add(of_frequency(layer, args));
    found.add(of_hybrid(layer, args));
    found.add(of_pattern(layer, args));
  }
  return found.take();
}

}  // namespace optim

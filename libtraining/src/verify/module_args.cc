#include "verify/module_args.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace optim {
namespace {

using Weights = std::initializer_list<std::string_view>;

constexpr std::string_view kSharedFirst = "mlp.shared_experts.linear_fc1.weight";

std::optional<bool> has_biases(const StatedArgs& args) { return args.flag("add_bias_linear"); }

std::optional<bool> has_qkv_bias(const StatedArgs& args) {
  // With add_bias_linear linear_qkv has one, whatever this argument says.
  if (args.flag("add_bias_linear").value_or(true)) return std::nullopt;
  return args.flag("add_qkv_bias");
}

std::optional<bool> has_query_norm(const StatedArgs& args) {
  if (args.is_set("qk_l2_norm")) return std::nullopt;  // which has no weights
  return args.flag("qk_layernorm");
}

std::optional<bool> has_norm_bias(const StatedArgs& args) {
  const auto kind = args.word("normalization");
  if (kind == "LayerNorm") return true;
  return kind == "RMSNorm" ? std::optional(false) : std::nullopt;
}

std::optional<bool> has_learned_offset(const StatedArgs& args) {
  const auto kind = args.word("softmax_type");
  return kind ? std::optional(*kind == "learnable") : std::nullopt;
}

std::optional<bool> is_latent(const StatedArgs& args) {
  return args.flag("multi_latent_attention");
}
std::optional<bool> has_low_rank_queries(const StatedArgs& args) {
  return args.is_number("q_lora_rank");
}
std::optional<bool> has_shared(const StatedArgs& args) {
  return args.is_number("moe_shared_expert_intermediate_size");
}
std::optional<bool> has_expert_bias(const StatedArgs& args) {
  return args.flag("moe_router_enable_expert_bias");
}
std::optional<bool> has_shared_gate(const StatedArgs& args) {
  return args.flag("moe_shared_expert_gate");
}
// None is a model without experts, whose layers have no router.
std::optional<bool> has_router(const StatedArgs& args) {
  return args.is_number("num_experts") == false ? std::optional(false) : std::nullopt;
}

// A layer with one of `beside` has one of `tensors` where args say so, and else none of them.
struct Presence {
  std::string_view arg;
  Weights beside, tensors;
  std::optional<bool> (*stated)(const StatedArgs&);
  ContradictedArg::Decides decides = ContradictedArg::Decides::Modules;
};

const std::initializer_list<Presence>& presences() {
  static const std::initializer_list<Presence> rows = {
      {"multi_latent_attention",
       {kLinearQkv, kLatentKvUp},
       {kLatentKvUp},
       is_latent,
       ContradictedArg::Decides::Cut},
      {"num_experts",
       {kRouterWeight, kMlpFirst},
       {kRouterWeight},
       has_router,
       ContradictedArg::Decides::Cut},
      {"add_bias_linear", {kLinearProj}, {"self_attention.linear_proj.bias"}, has_biases},
      {"add_bias_linear", {kMlpFirst}, {"mlp.linear_fc1.bias"}, has_biases},
      {"add_qkv_bias", {kLinearQkv}, {"self_attention.linear_qkv.bias"}, has_qkv_bias},
      {"qk_layernorm", {kLinearQkv}, {"self_attention.q_layernorm.weight"}, has_query_norm},
      {"qk_layernorm",
       {kLatentKvUp},
       {"self_attention.linear_kv_up_proj.layer_norm_weight"},
       has_query_norm},
      {"normalization", {"input_layernorm.weight"}, {"input_layernorm.bias"}, has_norm_bias},
      {"normalization",
       {"self_attention.linear_qkv.layer_norm_weight"},
       {"self_attention.linear_qkv.layer_norm_bias"},
       has_norm_bias},
      {"normalization", {"pre_mlp_layernorm.weight"}, {"pre_mlp_layernorm.bias"}, has_norm_bias},
      {"normalization",
       {"mlp.linear_fc1.layer_norm_weight"},
       {"mlp.linear_fc1.layer_norm_bias"},
       has_norm_bias},
      {"softmax_type",
       {kLinearQkv},
       {"self_attention.core_attention.softmax_offset"},
       has_learned_offset},
      {"q_lora_rank",
       {kLatentKvUp},
       {"self_attention.linear_q_down_proj.weight"},
       has_low_rank_queries},
      {"moe_shared_expert_intermediate_size", {kRouterWeight}, {kSharedFirst}, has_shared},
      {"moe_router_enable_expert_bias",
       {kRouterWeight},
       {"mlp.router.expert_bias"},
       has_expert_bias},
      {"moe_shared_expert_gate",
       {kSharedFirst},
       {"mlp.shared_experts.gate_weight"},
       has_shared_gate},
  };
  return rows;
}

std::optional<ContradictedArg> of_presence(const Presence& row, const KnownLayer& layer,
                                           const StatedArgs& args) {
  const auto is_there = [&](std::string_view name) { return layer.has(name); };
  const auto stated = row.stated(args);
  if (!stated || std::ranges::none_of(row.beside, is_there)) return std::nullopt;
  const auto* const found = std::ranges::find_if(row.tensors, is_there);
  if (*stated == (found != row.tensors.end())) return std::nullopt;
  const std::string_view tensor = *stated ? *row.tensors.begin() : *found;
  const auto* const beside = std::ranges::find_if(row.beside, is_there);
  return ContradictedArg{std::string(row.arg),
                         "is " + args.text(row.arg) + ", but " + layer.name_of(tensor) +
                             (*stated ? " is not beside " + layer.name_of(*beside) : " is there"),
                         row.decides};
}

struct Width {
  std::string_view rule;
  size_t axis;
  std::string_view arg;
  ContradictedArg::Decides decides = ContradictedArg::Decides::Shapes;
};

constexpr Width kWidths[] = {
    {"mlp.linear_fc2.weight", 1, "ffn_hidden_size"},
    {"mlp.shared_experts.linear_fc2.weight", 1, "moe_shared_expert_intermediate_size"},
    {kRouterWeight, 0, "num_experts", ContradictedArg::Decides::Cut},
};

std::optional<ContradictedArg> unequal(std::string_view arg, const StatedArgs& args,
                                       const std::string& name, uint64_t found) {
  const auto stated = args.size(arg);
  if (!stated || found == 0 || *stated == found) return std::nullopt;
  return ContradictedArg{
      std::string(arg),
      "is " + std::to_string(*stated) + ", but " + name + " has " + std::to_string(found),
      ContradictedArg::Decides::Shapes};
}

std::optional<ContradictedArg> of_width(const Width& row, const KnownLayer& layer,
                                        const StatedArgs& args) {
  auto wrong = unequal(row.arg, args, layer.name_of(row.rule), layer.size(row.rule, row.axis));
  if (!wrong) return std::nullopt;
  wrong->problem += row.axis == 0 ? " rows" : " columns";
  wrong->decides = row.decides;
  return wrong;
}

// Without a size of their own experts are as wide as an MLP.
std::optional<ContradictedArg> of_expert(const KnownLayer& layer, const StatedArgs& args) {
  if (layer.expert == nullptr || layer.expert->weight->shape.size() != 2) return std::nullopt;
  const bool is_own = args.size("moe_ffn_hidden_size").has_value();
  auto wrong = unequal(is_own ? "moe_ffn_hidden_size" : "ffn_hidden_size", args,
                       layer.expert->info.name, layer.expert->weight->shape[1]);
  if (!wrong) return std::nullopt;
  wrong->problem += " columns";
  if (!is_own) wrong->problem += ", and args.moe_ffn_hidden_size is not set";
  return wrong;
}

// Layer by layer, as get_gpt_decoder_block_spec has it.
std::optional<bool> has_experts_by_frequency(uint32_t layer, const StatedArgs& args) {
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
                         ContradictedArg::Decides::Cut};
}

std::optional<ContradictedArg> of_hybrid(const KnownLayer& layer, const StatedArgs& args) {
  const bool is_both = layer.has(kLinearProj) && (layer.has(kMlpFirst) || layer.has(kRouterWeight));
  if (!is_both || !args.is_set("is_hybrid_model")) return std::nullopt;
  return ContradictedArg{"is_hybrid_model", "is True, but " + layer.prefix +
                                                "* has attention and an MLP, which a "
                                                "hybrid model has in layers of their own"};
}

// A number of experts that a model without any has: a layer of it may still be dense.
std::optional<ContradictedArg> of_dense_model(const std::vector<KnownLayer>& layers,
                                              const StatedArgs& args) {
  const auto stated = args.size("num_experts");
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
  return ContradictedArg{"num_experts",
                         "is " + std::to_string(*stated) + ", but the model has no experts",
                         ContradictedArg::Decides::Cut};
}

}  // namespace

std::vector<ContradictedArg> contradicted_modules(const std::vector<KnownLayer>& layers,
                                                  const StatedArgs& args) {
  ContradictedArgs found;
  auto dense = of_dense_model(layers, args);
  const bool is_dense = dense.has_value();
  found.add(std::move(dense));
  for (const KnownLayer& layer : layers) {
    for (const Presence& row : presences()) found.add(of_presence(row, layer, args));
    for (const Width& row : kWidths) found.add(of_width(row, layer, args));
    found.add(of_expert(layer, args));
    if (!is_dense) found.add(of_frequency(layer, args));
    found.add(of_hybrid(layer, args));
  }
  return found.take();
}

}  // namespace optim

#include "grid/layer_stacks.h"

#include <algorithm>

#include <ckpt/error.h>

#include "model/model_rules.h"

namespace optim {
namespace {

constexpr std::string_view kEncoder = "encoder.layers.";
constexpr std::string_view kLanguageDecoder = "language_model.decoder.layers.";
// More than a model has.
constexpr uint64_t kLayersMax = uint64_t{1} << 20;

}  // namespace

void LayerStacks::add(std::string_view name, uint64_t stacked_layers) {
  const std::string_view prefix = stack_of(name);
  if (prefix.empty()) return;
  auto seen = seen_.find(prefix);
  if (seen == seen_.end()) seen = seen_.emplace(prefix, Seen()).first;
  const auto in_layer = split_stack(name);
  (in_layer ? seen->second.unstacked : seen->second.stacked) = name;
  seen->second.layers =
      std::max(seen->second.layers, in_layer ? uint64_t{in_layer->layer} + 1 : stacked_layers);
  const std::string_view rest = in_layer ? in_layer->rest : name.substr(prefix.size());
  if (rest.starts_with("input_layernorm.")) seen->second.has_norms = true;
}

void LayerStacks::settle(TrainingState& state) const {
  ModelFacts& facts = state.facts;
  const bool has_encoder = seen_.contains(kEncoder), has_decoder = seen_.contains(kLayersPrefix);
  facts.divided_stack = kLayersPrefix;
  if (!has_decoder && has_encoder) facts.divided_stack = kEncoder;
  if (seen_.contains(kLanguageDecoder)) facts.divided_stack = kLanguageDecoder;
  if (has_decoder && has_encoder) facts.divided_stack.clear();
  for (const auto& [prefix, seen] : seen_) {
    const bool is_stacked = !seen.stacked.empty();
    if (is_stacked && !seen.unstacked.empty()) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = seen.unstacked},
                        "is the key of one layer, but '" + ckpt::escaped(seen.stacked) +
                            "' is stacked over layers; a model with both is not supported");
    }
    if (seen.layers > kLayersMax) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported,
                        {.file = {}, .key = is_stacked ? seen.stacked : seen.unstacked},
                        "is of more layers than any model has");
    }
    const bool is_divided = prefix == facts.divided_stack;
    if (is_divided && prefix == kLayersPrefix) continue;
    LayerStack stack{
        .prefix = prefix,
        .layers = is_divided ? state.grid.pipeline.num_layers : static_cast<uint32_t>(seen.layers)};
    if (from_ == From::Store) {
      stack.is_stacked = is_stacked;
      stack.layer_norm_renamed = facts.layer_norm_renamed && !seen.has_norms;
    } else {
      stack.is_stacked = facts.layers_stacked;
      stack.layer_norm_renamed = facts.layer_norm_renamed && prefix != kVisionStack;
      const bool is_known =
          prefix == kVisionStack || without_submodel(prefix) == kLayersPrefix || prefix == kEncoder;
      stack.are_keys_known = is_known || !facts.layer_norm_renamed;
    }
    facts.stacks.push_back(std::move(stack));
  }
}

}  // namespace optim

// The order of a model that was read from a torch_dist folder.
#include "layouts/torch_dist/model_order.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace optim {
namespace {

// What Megatron leaves out of sharded state dicts, where it is None; the model's own have it: the
// output layer's, with tied embeddings, too, and of TransformerEngine each attention's, which is
// stored where the attention has a parameter (--softmax-type learnable).
void add_unsharded(const KeyRules& rules, TrainingState& view) {
  std::set<std::string> stored;
  for (const ModelEntry& entry : view.model) {
    if (entry.what == ModelEntry::What::ExtraState) stored.insert(entry.name);
  }
  const auto add = [&](std::string name) {
    if (stored.contains(name)) return;
    view.model.push_back({ModelEntry::What::ExtraState, std::move(name), 0, std::nullopt});
  };
  add(std::string(kOutputExtraState));
  if (view.facts.layer_norm_renamed) return;
  const PipelineSplit& layers = view.grid.pipeline;
  for (const ModelRule& rule : rules.table->rows()) {
    if (!rule.unsharded || rule.part != ModelPart::Layer) continue;
    for (uint32_t i = 0; i < layers.num_layers; ++i) add(join_layer(i, rule.name));
    for (uint32_t i = 0; i < layers.mtp_num_layers; ++i) {
      add(std::string(kMtpLayersPrefix) + std::to_string(i) + "." + std::string(kMtpModelLayer) +
          rule.name);
    }
  }
}

// Names without a rule come behind those of their layer, or at the end.
ModelPlace position_of(const std::string& name, const ModelRules& table, TrainingState& view) {
  if (const auto found = table.find(name)) return found->place;
  if (view.unknown_order.empty()) view.unknown_order = name;
  const auto layer = split_layer(name);
  if (!layer) return {.part = name.starts_with("embedding.") ? 0u : ~0u, .block = ~0u};
  return {.part = static_cast<uint32_t>(ModelPart::Layer), .layer = layer->layer, .block = ~0u};
}

}  // namespace

void order_model(const KeyRules& rules, TrainingState& view) {
  add_unsharded(rules, view);
  using Placed = std::pair<ModelPlace, ModelEntry>;
  std::vector<Placed> placed;
  placed.reserve(view.model.size());
  for (ModelEntry& entry : view.model) {
    const ModelPlace place = position_of(entry.name, *rules.table, view);
    placed.emplace_back(place, std::move(entry));
  }
  std::ranges::stable_sort(placed, {}, &Placed::first);
  view.model = std::vector<ModelEntry>();  // as long as it is, no longer
  view.model.reserve(placed.size());
  for (Placed& entry : placed) view.model.push_back(std::move(entry.second));
}

}  // namespace optim

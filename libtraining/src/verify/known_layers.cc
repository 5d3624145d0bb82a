#include "verify/known_layers.h"

#include <set>
#include <utility>

#include "model/model_rules.h"
#include "model/stage_names.h"

namespace optim {
namespace {

struct LayerPlace {
  bool is_decoder = false;
  uint32_t layer = 0;
  auto operator<=>(const LayerPlace&) const = default;
};

std::optional<LayerPlace> place_of(std::string_view name) {
  if (const auto in_layer = split_layer(name)) return LayerPlace{true, in_layer->layer};
  const auto in_mtp = split_mtp_layer(name);
  if (!in_mtp || !in_mtp->rest.starts_with(kMtpModelLayer)) return std::nullopt;
  return LayerPlace{false, in_mtp->layer};
}

std::string prefix_of(const LayerPlace& place) {
  if (place.is_decoder) return join_layer(place.layer, "");
  return std::string(kMtpLayersPrefix) + std::to_string(place.layer) + "." +
         std::string(kMtpModelLayer);
}

void add_to(const TrainedParam& param, const ModelRule& rule, KnownLayer& layer) {
  if (!expert_in(param.info.name)) {
    layer.tensors.emplace(rule.name, &param.weight->shape);
  } else if (layer.expert == nullptr && rule.name.find("linear_fc2.weight") != rule.name.npos) {
    layer.expert = &param;
  }
}

}  // namespace

uint64_t KnownLayer::size(std::string_view name, size_t axis) const {
  const auto found = tensors.find(name);
  return found != tensors.end() && found->second->size() == 2 ? (*found->second)[axis] : 0;
}

std::vector<KnownLayer> known_layers(const TrainingState& state) {
  std::map<LayerPlace, KnownLayer> layers;
  std::set<LayerPlace> foreign;
  for (const TrainedParam& param : state.params) {
    const auto place = place_of(param.info.name);
    if (!place || !param.weight) continue;
    if (const auto known = ModelRules::built_in().find(param.info.name)) {
      add_to(param, *known->rule, layers[*place]);
    } else {
      foreign.insert(*place);
    }
  }
  std::vector<KnownLayer> known;
  for (auto& [place, layer] : layers) {
    if (foreign.contains(place)) continue;
    layer.prefix = prefix_of(place);
    if (place.is_decoder) layer.decoder = place.layer;
    known.push_back(std::move(layer));
  }
  return known;
}

}  // namespace optim

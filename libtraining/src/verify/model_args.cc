#include "verify/model_args.h"

#include <algorithm>
#include <set>
#include <utility>

#include "model/model_rules.h"
#include "model/stage_names.h"

namespace optim {
namespace {

using ckpt::Kind;

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
  if (!is_of_experts(rule)) {
    layer.tensors.emplace(rule.name, &param.weight->shape);
  } else if (layer.expert == nullptr && rule.name.find("linear_fc2.weight") != rule.name.npos) {
    layer.expert = &param;
  }
}

}  // namespace

std::optional<uint64_t> StatedArgs::size(std::string_view name) const {
  const auto value = find(name);
  const bool is_size = value && value->is(Kind::Int) && value->as_int() > 0;
  return is_size ? std::optional(static_cast<uint64_t>(value->as_int())) : std::nullopt;
}

std::optional<bool> StatedArgs::flag(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Bool) ? std::optional(value->as_bool()) : std::nullopt;
}

std::optional<std::string_view> StatedArgs::word(std::string_view name) const {
  const auto value = find(name);
  return value && value->is(Kind::Str) ? std::optional(value->text()) : std::nullopt;
}

std::optional<bool> StatedArgs::is_number(std::string_view name) const {
  const auto value = find(name);
  if (!value || (!value->is(Kind::Int) && !value->is_none())) return std::nullopt;
  return value->is(Kind::Int);
}

std::string StatedArgs::text(std::string_view name) const {
  const auto value = find(name);
  if (!value) return "not set";
  switch (value->kind()) {
    case Kind::Int: return std::to_string(value->as_int());
    case Kind::Bool: return value->as_bool() ? "True" : "not set";
    case Kind::Str: return "'" + ckpt::escaped(value->text()) + "'";
    case Kind::None: return "not set";
    default: return "another value";
  }
}

ContradictedArg contradicted(std::string_view name, const std::string& stated,
                             const std::string& but, ContradictedArg::Decides decides) {
  return {std::string(name), "is " + stated + ", but " + but, decides};
}

std::string has_size(std::string_view tensor, uint64_t count, size_t axis) {
  return std::string(tensor) + " has " + std::to_string(count) + (axis == 0 ? " rows" : " columns");
}

void ContradictedArgs::add(std::optional<ContradictedArg> wrong) {
  if (!wrong) return;
  const bool is_known =
      std::ranges::find(found_, wrong->name, &ContradictedArg::name) != found_.end();
  if (!is_known) found_.push_back(std::move(*wrong));
}

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

// Rows of linear_fc1 against columns of linear_fc2.
#include "grid/gating.h"

#include <ckpt/error.h>

namespace optim {
namespace {

constexpr std::string_view kFirst = ".linear_fc1.weight", kSecond = ".linear_fc2.weight";

// "vision_model.decoder.layers.0.mlp.linear_fc1.weight": "vision_model."; of what is in no layer,
// as a projector's: all that is before linear_fc1.
std::string_view submodel_of(std::string_view first) {
  const size_t layers = first.find("layers.");
  if (layers == 0 || (layers != first.npos && first[layers - 1] == '.')) {
    const std::string_view before = first.substr(0, layers == 0 ? 0 : layers - 1);
    return before.substr(0, before.rfind('.') + 1);
  }
  return first.substr(0, first.find(kFirst));
}

}  // namespace

void GatingByShapes::add(const std::string& name, const ckpt::Extents& shape) {
  if (shape.size() < 2) return;
  const auto pair_of = [this](const std::string& first) -> Pair& {
    return submodels_[std::string(submodel_of(first))][first];
  };
  if (name.find(kFirst) != name.npos) {
    pair_of(name).first_rows = shape[shape.size() - 2];
  } else if (const size_t at = name.find(kSecond); at != name.npos) {
    pair_of(std::string(name).replace(at, kSecond.size(), kFirst)).second_columns = shape.back();
  }
}

const GatingByShapes::Pairs* GatingByShapes::of_language_model() const {
  for (const char* name : {"", "language_model."}) {
    if (const auto found = submodels_.find(name); found != submodels_.end()) return &found->second;
  }
  return submodels_.size() == 1 ? &submodels_.begin()->second : nullptr;
}

std::optional<bool> GatingByShapes::is_gated() const {
  const Pairs* const pairs = of_language_model();
  if (pairs == nullptr) return std::nullopt;
  const std::string *gated = nullptr, *plain = nullptr;  // the first of each, by name
  for (const auto& [name, pair] : *pairs) {
    const auto& [rows, columns] = pair;
    if (rows == 0 || columns == 0 || (rows != columns && rows != 2 * columns)) continue;
    const std::string*& first = rows == columns ? plain : gated;
    if (first == nullptr || name < *first) first = &name;
  }
  if (gated != nullptr && plain != nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = *gated},
                      "is a gated linear unit's, but '" + ckpt::escaped(*plain) +
                          "' is not; models that have both are not supported");
  }
  if (gated == nullptr && plain == nullptr) return std::nullopt;
  return gated != nullptr;
}

void ask_for_gating(TrainingState& view) {
  GatingByShapes shapes;
  for (const TrainedParam& param : view.params) shapes.add(param.info.name, param.weight->shape);
  if (const auto is_gated = shapes.is_gated()) view.facts.gated_linear_unit = *is_gated;
}

}  // namespace optim

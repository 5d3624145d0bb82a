// Rows of linear_fc1 against columns of linear_fc2.
#include "grid/gating.h"

#include <ckpt/error.h>

namespace optim {
namespace {

constexpr std::string_view kFirst = ".linear_fc1.weight", kSecond = ".linear_fc2.weight";

}  // namespace

void GatingByShapes::add(const std::string& name, const ckpt::Extents& shape) {
  if (shape.size() != 2) return;
  if (name.find(kFirst) != name.npos) {
    pairs_[name].first_rows = shape[0];
  } else if (const size_t at = name.find(kSecond); at != name.npos) {
    pairs_[std::string(name).replace(at, kSecond.size(), kFirst)].second_columns = shape[1];
  }
}

std::optional<bool> GatingByShapes::is_gated() const {
  const std::string *gated = nullptr, *plain = nullptr;  // the first of each, by name
  for (const auto& [name, pair] : pairs_) {
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

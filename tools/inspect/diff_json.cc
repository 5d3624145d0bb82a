// The document of ckpt-inspect diff --json: docs/schema/diff.json.
#include "inspect/diff_parts.h"

#include <common/json.h>
#include <common/text.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr int kDiffSchemaVersion = 2;  // 1: max_ulp, without counts

nlohmann::json value_difference_json(const ckpt::ValueDifference& value) {
  nlohmann::json json = {{"elements", value.element_count},
                         {"different", value.different_count},
                         {"nonfinite", value.nonfinite_count},
                         {"max_abs", value.max_abs},
                         {"max_rel", value.max_rel},
                         {"first_index", value.first_index},
                         {"first_a", value.first_a},
                         {"first_b", value.first_b},
                         {"norm", value.norm},
                         {"norm_a", value.norm_a}};
  if (value.max_ulp_distance) json["max_ulp_distance"] = *value.max_ulp_distance;
  if (!has_finite(value)) {
    json["max_abs"] = json["max_rel"] = json["norm"] = nullptr;
    json.erase("max_ulp_distance");
  }
  return json;
}

template <class Difference>
nlohmann::json name_and_kind(const Difference& difference) {
  nlohmann::json json = {{"kind", name(difference.kind)}, {"key", json_text(difference.key)}};
  if (!difference.file.empty()) json["file"] = json_text(difference.file);
  if (difference.kind == ckpt::DifferenceKind::Key) {
    json["key_types"] = {python_type(difference.a->key_kind), python_type(difference.b->key_kind)};
  }
  return json;
}

nlohmann::json tensor_difference_json(const ckpt::TensorDifference& tensor) {
  nlohmann::json json = name_and_kind(tensor);
  if (tensor.a != nullptr)
    json["a"] = {{"dtype", name(tensor.a->dtype)}, {"shape", tensor.a->shape}};
  if (tensor.b != nullptr)
    json["b"] = {{"dtype", name(tensor.b->dtype)}, {"shape", tensor.b->shape}};
  if (tensor.is_rounded) json["rounded"] = true;
  if (tensor.value) json["value"] = value_difference_json(*tensor.value);
  return json;
}

nlohmann::json module_difference_json(const optim::ModuleDifference& module) {
  nlohmann::json json = {{"module", json_text(module.module)},
                         {"compared", module.compared_count},
                         {"different", module.different_count},
                         {"missing_or_type", module.structural_count},
                         {"nonfinite", module.nonfinite_count},
                         {"max_abs", module.max_abs},
                         {"max_rel", module.max_rel},
                         {"worst", json_text(module.worst)},
                         {"values_compared", module.value_count}};
  if (std::isfinite(module.relative_norm)) json["relative_norm"] = module.relative_norm;
  if (module.max_ulp_distance) json["max_ulp_distance"] = *module.max_ulp_distance;
  return json;
}

}  // namespace

std::string_view python_type(ckpt::Kind key) {
  static constexpr std::string_view kNames[] = {
      "None", "bool",  "int",  "int", "float",     "str",   "bytes",  "bytearray",
      "list", "tuple", "dict", "set", "frozenset", "class", "object", "storage"};
  return kNames[static_cast<size_t>(key)];
}

std::pair<std::span<const ckpt::TensorDifference>, std::span<const ckpt::ObjectDifference>>
first_of(const ckpt::Differences& differences, size_t limit) {
  const size_t tensor_count = std::min(limit, differences.tensors.size());
  const size_t object_count = std::min(limit - tensor_count, differences.objects.size());
  return {std::span(differences.tensors).first(tensor_count),
          std::span(differences.objects).first(object_count)};
}

nlohmann::json object_difference_json(const ckpt::ObjectDifference& object) {
  nlohmann::json json = name_and_kind(object);
  json["places"] = object.place_count;
  json["details"] = json_list(object.details, [](const ckpt::PlaceDifference& place) {
    nlohmann::json detail = {{"pointer", json_text(place.pointer)}};
    if (place.may_be_one) detail["may_be_one"] = true;
    if (place.key_kind != ckpt::Kind::Str) detail["key_type"] = python_type(place.key_kind);
    if (place.a) detail["a"] = json_text(value_text(*place.a, SIZE_MAX));
    if (place.b) detail["b"] = json_text(value_text(*place.b, SIZE_MAX));
    return detail;
  });
  return json;
}

nlohmann::json side_json(const optim::OpenedTraining& checkpoint) {
  return {{"path", json_text(checkpoint.shown_path())},
          {"format", name(checkpoint.catalog().format)}};
}

nlohmann::json verdict_json(const ckpt::Differences& differences) {
  nlohmann::json document = json_document(kDiffSchemaVersion);
  document["equal"] = differences.none();
  document["tensors"] = {{"compared", differences.tensor_count},
                         {"different_count", differences.tensors.size()}};
  document["objects"] = {{"compared", differences.object_count},
                         {"different_count", differences.objects.size()}};
  return document;
}

void add_lists(nlohmann::json& document, const ckpt::Differences& differences, size_t limit) {
  const auto [tensors, objects] = first_of(differences, limit);
  document["tensors"]["different"] = json_list(tensors, tensor_difference_json);
  document["objects"]["different"] = json_list(objects, object_difference_json);
}

void add_modules(nlohmann::json& document, const optim::DiffSummary& summary, size_t limit) {
  const auto shown = std::span(summary.modules).first(std::min(limit, summary.modules.size()));
  document["modules"] = {{"compared", summary.module_count},
                         {"different_count", summary.modules.size()},
                         {"different", json_list(shown, module_difference_json)}};
}

}  // namespace tools::inspect

// What two checkpoints do not have in common, as the document of diff --json.
#include "inspect/diff_json.h"

#include <common/json.h>

#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr int kDiffSchemaVersion = 2;  // 1: max_ulp, without counts

nlohmann::json value_difference_json(const ckpt::ValueDifference& value) {
  nlohmann::json json = {{"elements", value.element_count},    {"different", value.different_count},
                         {"nonfinite", value.nonfinite_count}, {"max_abs", value.max_abs},
                         {"max_rel", value.max_rel},           {"first_index", value.first_index},
                         {"first_a", value.first_a},           {"first_b", value.first_b}};
  if (value.max_ulp_distance) json["max_ulp_distance"] = *value.max_ulp_distance;
  return json;
}

template <class Difference>
nlohmann::json name_and_kind(const Difference& difference) {
  nlohmann::json json = {{"kind", name(difference.kind)}, {"key", json_text(difference.key)}};
  if (!difference.file.empty()) json["file"] = json_text(difference.file);
  return json;
}

template <class Difference>
void add_key_types(const Difference& difference, nlohmann::json& json) {
  if (difference.kind != ckpt::DifferenceKind::Key) return;
  json["key_types"] = {python_type(difference.a->key_kind), python_type(difference.b->key_kind)};
}

nlohmann::json tensor_difference_json(const ckpt::TensorDifference& tensor) {
  nlohmann::json json = name_and_kind(tensor);
  if (tensor.a != nullptr)
    json["a"] = {{"dtype", name(tensor.a->dtype)}, {"shape", tensor.a->shape}};
  if (tensor.b != nullptr)
    json["b"] = {{"dtype", name(tensor.b->dtype)}, {"shape", tensor.b->shape}};
  if (tensor.value) json["value"] = value_difference_json(*tensor.value);
  add_key_types(tensor, json);
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

nlohmann::json to_json(const ckpt::ObjectDifference& object) {
  nlohmann::json json = name_and_kind(object);
  add_key_types(object, json);
  json["places"] = object.place_count;
  json["details"] = nlohmann::json::array();
  for (const ckpt::PlaceDifference& place : object.details) {
    nlohmann::json detail = {{"pointer", json_text(place.pointer)}};
    if (place.may_be_one) detail["may_be_one"] = true;
    if (place.a) detail["a"] = json_text(value_text(*place.a, SIZE_MAX));
    if (place.b) detail["b"] = json_text(value_text(*place.b, SIZE_MAX));
    json["details"].push_back(std::move(detail));
  }
  return json;
}

nlohmann::json to_json(const optim::OpenedTraining& checkpoint) {
  return {{"path", json_text(checkpoint.shown_path())},
          {"format", name(checkpoint.catalog().format)}};
}

nlohmann::json to_json(const ckpt::Differences& differences) {
  nlohmann::json document = json_document();
  document["schema_version"] = kDiffSchemaVersion;
  document["equal"] = differences.none();
  document["tensors"] = {{"compared", differences.tensor_count},
                         {"different_count", differences.tensors.size()}};
  document["objects"] = {{"compared", differences.object_count},
                         {"different_count", differences.objects.size()}};
  return document;
}

void add_lists(nlohmann::json& document, const ckpt::Differences& differences, size_t limit) {
  nlohmann::json& tensors = document["tensors"]["different"] = nlohmann::json::array();
  nlohmann::json& objects = document["objects"]["different"] = nlohmann::json::array();
  for (const auto& tensor : differences.tensors) {
    if (tensors.size() < limit) tensors.push_back(tensor_difference_json(tensor));
  }
  for (const auto& object : differences.objects) {
    if (tensors.size() + objects.size() < limit) objects.push_back(to_json(object));
  }
}

void add_modules(nlohmann::json& document, const optim::DiffSummary& summary, size_t limit) {
  document["modules"] = {{"compared", summary.module_count},
                         {"different_count", summary.modules.size()},
                         {"different", nlohmann::json::array()}};
  for (const optim::ModuleDifference& module : summary.modules) {
    nlohmann::json& list = document["modules"]["different"];
    if (list.size() < limit) list.push_back(module_difference_json(module));
  }
}

}  // namespace tools::inspect

// What has changed between two checkpoints, as a report has it.
#include <cmath>

#include <ckpt/printed.h>
#include <common/json.h>

#include "inspect/page/report_columns.h"
#include "inspect/page/report_json.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using Json = nlohmann::json;

constexpr size_t kOthersMax = 1000, kObjectsMax = 1000, kModulesMax = 2000;

// 1 - cosine is what can be seen of two checkpoints of one run.
struct Change {
  std::optional<double> one_minus_cosine, norm_ratio;
};

Change change_of(const std::optional<ckpt::ValueDifference::Products>& products) {
  Change change;
  if (!products) return change;
  const auto& [a_b, a_a, b_b] = *products;
  if (a_a > 0 && b_b > 0) {
    change.one_minus_cosine = std::max(0.0, 1 - a_b / (std::sqrt(a_a) * std::sqrt(b_b)));
  }
  if (a_a > 0) change.norm_ratio = std::sqrt(b_b / a_a);
  return change;
}

Json rounded_or_null(const std::optional<double>& number) {
  return number ? Json(rounded(*number)) : Json();
}

Json rows_json(const ComparedPage& page) {
  const optim::Comparison& comparison = page.comparison;
  std::vector<uint64_t> rows, different, outside, nonfinite;
  std::vector<std::optional<double>> max_abs, max_rel, turn, norm_ratio;
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const auto& value = comparison.differences.tensors[i].value;
    if (!comparison.rows[i] || !value) continue;
    const Change change = change_of(value->products);
    rows.push_back(*comparison.rows[i]);
    different.push_back(value->different_count);
    outside.push_back(value->outside_count);
    nonfinite.push_back(value->nonfinite_count);
    max_abs.push_back(value->max_abs);
    max_rel.push_back(value->max_rel);
    turn.push_back(change.one_minus_cosine);
    norm_ratio.push_back(change.norm_ratio);
  }
  const ColumnForm form = form_of(page.row_count);
  return {{"count", rows.size()},
          {"row", count_column(rows, form)},
          {"different", count_column(different, form)},
          {"outside", count_column(outside, form)},
          {"nonfinite", sparse_column(nonfinite)},
          {"max_abs", number_column(max_abs, form)},
          {"max_rel", number_column(max_rel, form)},
          {"one_minus_cosine", number_column(turn, form)},
          {"norm_ratio", number_column(norm_ratio, form)}};
}

Json side_json(const ckpt::TensorEntry* tensor) {
  if (tensor == nullptr) return nullptr;
  return {{"dtype", name(tensor->dtype)}, {"shape", tensor->shape}};
}

// What only one side has, what is of another type, and what has no row.
Json others_json(const optim::Comparison& comparison) {
  Json list = Json::array();
  size_t count = 0;
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    const ckpt::TensorDifference& tensor = comparison.differences.tensors[i];
    if (comparison.rows[i] && tensor.value) continue;
    if (++count > kOthersMax) continue;
    list.push_back({{"kind", name(tensor.kind)},
                    {"key", json_text(ckpt::qualified_key(tensor.file, tensor.key))},
                    {"a", side_json(tensor.a)},
                    {"b", side_json(tensor.b)}});
  }
  return {{"count", count}, {"first", std::move(list)}};
}

Json objects_json(const ckpt::Differences& differences) {
  Json list = Json::array();
  for (const ckpt::ObjectDifference& object : differences.objects) {
    if (list.size() == kObjectsMax) break;
    Json json = {{"kind", name(object.kind)},
                 {"key", json_text(ckpt::qualified_key(object.file, object.key))},
                 {"places", object.place_count},
                 {"details", Json::array()}};
    for (const ckpt::PlaceDifference& place : object.details) {
      Json detail = {{"pointer", json_text(place.pointer)}};
      if (place.a) detail["a"] = json_text(value_text(*place.a, 400));
      if (place.b) detail["b"] = json_text(value_text(*place.b, 400));
      json["details"].push_back(std::move(detail));
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json modules_json(const optim::DiffSummary& summary) {
  Json list = Json::array();
  for (const optim::ModuleDifference& module : summary.modules) {
    if (list.size() == kModulesMax) break;
    const Change change = change_of(module.products);
    list.push_back({{"module", json_text(module.module)},
                    {"compared", module.compared_count},
                    {"different", module.different_count},
                    {"missing_or_type", module.structural_count},
                    {"nonfinite", module.nonfinite_count},
                    {"max_abs", rounded(module.max_abs)},
                    {"max_rel", rounded(module.max_rel)},
                    {"one_minus_cosine", rounded_or_null(change.one_minus_cosine)},
                    {"norm_ratio", rounded_or_null(change.norm_ratio)},
                    {"worst", json_text(module.worst)}});
  }
  return list;
}

}  // namespace

Json comparison_to_json(const ComparedPage& page) {
  const ckpt::Differences& differences = page.comparison.differences;
  Json json = {
      {"path", json_text(page.b.shown_path())},
      {"format", name(page.b.catalog().format)},
      {"names", page.comparison.named.names},
      {"atol", page.options.atol},
      {"rtol", page.options.rtol},
      {"equal", differences.none()},
      {"tensors",
       {{"compared", differences.tensor_count}, {"different", differences.tensors.size()}}},
      {"object_count", differences.object_count},
      {"rows", rows_json(page)},
      {"others", others_json(page.comparison)},
      {"objects", objects_json(differences)},
      {"modules", modules_json(page.comparison.modules)},
      {"warnings", Json::array()}};
  if (page.b.catalog().iteration) json["iteration"] = *page.b.catalog().iteration;
  for (const std::string& warning : page.comparison.named.warnings) {
    json["warnings"].push_back(json_text(warning));
  }
  return json;
}

}  // namespace tools::inspect

// A report as the document that --json prints and the page holds.
#include "inspect/page/report_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <common/json.h>

#include <ckpt/printed.h>

#include "inspect/facts.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using Json = nlohmann::json;
using optim::ReportedTensor;
using optim::ReportPage;

Json checkpoint_json(const Page& page) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  const optim::Summary& summary = page.summary;
  Json json = {{"path", json_text(summary.path)},
               {"format", name(catalog.format)},
               {"format_text", json_text(format_words(page))},
               {"file_count", summary.files.count},
               {"file_bytes", summary.files.count_bytes},
               {"stored_tensor_bytes", summary.stored_tensor_bytes},
               {"types", to_json(summary.dtypes)},
               {"kinds", to_json(summary.kinds)}};
  if (catalog.iteration) json["iteration"] = *catalog.iteration;
  if (summary.parameter_count) json["parameters"] = *summary.parameter_count;
  if (summary.step) json["step"] = *summary.step;
  if (summary.writer_count) json["writing_ranks"] = *summary.writer_count;
  if (!summary.sharding.empty()) json["optimizer_sharding"] = json_text(summary.sharding);
  return json;
}

Json grid_json(const ReportPage& report) {
  Json json = {{"axes", report.rank_axes}, {"ranks", Json::array()}, {"sizes", Json::object()}};
  for (const auto& [size, value] : report.summary.run.sizes) json["sizes"][size] = value;
  for (const optim::RankPlace& place : report.ranks) {
    json["ranks"].push_back({place.rank, place.tp, place.pp, place.cp, place.dp, place.ep});
  }
  return json;
}

// --- the table of tensors ---

class Table {
 public:
  explicit Table(const ReportPage& report)
      : report_(report), form_(form_of(report.tensors.size())) {}

  Json columns() const {
    Json json = {{"count", report_.tensors.size()}};
    add_names(json);
    add_kinds(json);
    add_figures(json);
    add_marks(json);
    return json;
  }

 private:
  const std::vector<ReportedTensor>& rows() const { return report_.tensors; }

  // Rows of one name follow each other.
  void add_names(Json& json) const {
    std::vector<std::string> names;
    std::vector<uint64_t> row_counts;
    for (const ReportedTensor& row : rows()) {
      if (names.empty() || names.back() != row.tensor.name) {
        names.push_back(row.tensor.name);
        row_counts.push_back(0);
      }
      ++row_counts.back();
    }
    json["names"] = name_column(names, form_);
    json["rows_of_names"] = count_column(row_counts, form_);
    add_updates(json, names.size());
  }

  void add_updates(Json& json, size_t name_count) const {
    std::map<size_t, const optim::UpdateNorm*> by_row;
    for (const optim::UpdateNorm& update : report_.updates) by_row[update.tensor] = &update;
    std::vector<std::optional<double>> norms(name_count);
    std::vector<size_t> estimated;
    std::map<std::pair<std::string, std::string>, uint64_t> reasons;
    size_t name = 0;
    for (size_t i = 0; i < rows().size(); ++i) {
      if (i != 0 && rows()[i].tensor.name != rows()[i - 1].tensor.name) ++name;
      const auto found = by_row.find(i);
      if (found == by_row.end()) continue;
      norms[name] = found->second->norm;
      if (found->second->is_estimate && found->second->norm) estimated.push_back(name);
      if (!found->second->norm) ++reasons[{found->second->rule, found->second->reason}];
    }
    if (report_.updates.empty()) return;
    json["update_norm"] = number_column(norms, form_);
    json["update_estimated"] = estimated;
    json["update_not_computed"] = Json::array();
    for (const auto& [reason, count] : reasons) {
      json["update_not_computed"].push_back({{"rule", json_text(reason.first)},
                                             {"reason", json_text(reason.second)},
                                             {"parameters", count}});
    }
  }

  // What rows have in common stands in lists, and rows have its number.
  void add_kinds(Json& json) const {
    std::map<std::array<std::string, 3>, uint64_t> kinds;
    std::map<ckpt::Extents, uint64_t> shapes;
    std::vector<uint64_t> kind_of, shape_of, group_of;
    json["kinds"] = json["shapes"] = Json::array();
    for (const ReportedTensor& row : rows()) {
      const optim::LogicalTensor& tensor = row.tensor;
      const std::array<std::string, 3> kind = {std::string(name(tensor.role)), tensor.state,
                                               std::string(name(tensor.dtype))};
      const auto [known_kind, is_new_kind] = kinds.try_emplace(kind, kinds.size());
      if (is_new_kind) {
        json["kinds"].push_back(
            {{"role", kind[0]}, {"state", json_text(kind[1])}, {"dtype", kind[2]}});
      }
      const auto [known_shape, is_new_shape] = shapes.try_emplace(tensor.shape, shapes.size());
      if (is_new_shape) json["shapes"].push_back(tensor.shape);
      kind_of.push_back(known_kind->second);
      shape_of.push_back(known_shape->second);
      group_of.push_back(group_number(row));
    }
    json["kind"] = count_column(kind_of, form_);
    json["shape"] = count_column(shape_of, form_);
    json["group"] = count_column(group_of, form_);
  }

  // In `groups`, from 1; 0: not known.
  uint64_t group_number(const ReportedTensor& row) const {
    if (!row.group) return 0;
    const auto& groups = report_.summary.groups.groups;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].optimizer == *row.optimizer && groups[i].group == *row.group) return i + 1;
    }
    return 0;
  }

  void add_figures(Json& json) const {
    using Moments = ckpt::Statistics::Moments;
    const std::pair<const char*, double Moments::*> parts[] = {{"min", &Moments::min},
                                                               {"max", &Moments::max},
                                                               {"mean", &Moments::mean},
                                                               {"std", &Moments::std},
                                                               {"norm", &Moments::norm}};
    for (const auto& [title, part] : parts) {
      // It follows from mean and deviation.
      if (form_ == ColumnForm::Packed && part == &Moments::norm) continue;
      std::vector<std::optional<double>> numbers;
      for (const ReportedTensor& row : rows()) {
        const bool has = row.figures && row.figures->moments;
        numbers.push_back(has ? std::optional((*row.figures->moments).*part) : std::nullopt);
      }
      json[title] = number_column(numbers, form_);
    }
    json["zeros"] = sparse_counts(&optim::TensorFigures::zero_count);
    json["nan"] = sparse_counts(&optim::TensorFigures::nan_count);
    json["inf"] = sparse_counts(&optim::TensorFigures::inf_count);
    std::vector<optim::HistogramBars> bars;
    json["unread"] = Json::array();
    json["sampled"] = Json::array();
    for (size_t i = 0; i < rows().size(); ++i) {
      const ReportedTensor& row = rows()[i];
      bars.push_back(row.figures ? row.figures->bars : optim::HistogramBars{});
      if (!row.figures) {
        json["unread"].push_back(i);
      } else if (row.figures->element_count != ckpt::element_count(row.tensor.shape)) {
        json["sampled"].push_back({i, row.figures->element_count});
      }
    }
    json["bars"] = bars_column(bars, form_);
  }

  Json sparse_counts(uint64_t optim::TensorFigures::*count) const {
    std::vector<uint64_t> counts;
    for (const ReportedTensor& row : rows()) {
      counts.push_back(row.figures ? (*row.figures).*count : 0);
    }
    return sparse_column(counts);
  }

  void add_marks(Json& json) const {
    json["marks"] = Json::object();
    for (size_t i = 0; i < rows().size(); ++i) {
      for (const optim::Mark mark : rows()[i].marks) {
        json["marks"][std::string(name(mark))].push_back(i);
      }
    }
  }

  const ReportPage& report_;
  ColumnForm form_;
};

constexpr size_t kProofNestingMax = 64;

// At most; brackets within texts count, too.
size_t nesting_of(const std::string& json) {
  size_t depth = 0, deepest = 0;
  for (const char character : json) {
    if (character == '[' || character == '{') deepest = std::max(deepest, ++depth);
    if ((character == ']' || character == '}') && depth != 0) --depth;
  }
  return deepest;
}

Json proof_json(const std::string& text) {
  if (nesting_of(text) > kProofNestingMax) return {};  // nlohmann writes recursively
  const Json proof = Json::parse(text, nullptr, false);
  return proof.is_object() ? proof : Json();
}

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

// As \u escapes, which JSON has in strings alone, where alone these characters can be.
std::string without_markup(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    // U+2028 and U+2029, which end lines in old JavaScript.
    const bool is_separator = json.substr(i, 2) == "\xE2\x80" && i + 2 < json.size() &&
                              (json[i + 2] == '\xA8' || json[i + 2] == '\xA9');
    if (c == '<') {
      text += "\\u003c";
    } else if (c == '>') {
      text += "\\u003e";
    } else if (c == '&') {
      text += "\\u0026";
    } else if (is_separator) {
      text += json[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

Json report_to_json(const Page& page, const ReportPage& report) {
  Json document = json_document();
  document["checkpoint"] = checkpoint_json(page);
  document["verify"] = verify_json(report.verify, report.is_sample);
  document["read"] = {{"is_sample", report.is_sample},
                      {"tensor_bytes", report.tensor_bytes},
                      {"looked_at_bytes", report.looked_at_bytes}};
  document["optimizers"] = to_json(report.summary.optimizers);
  document["grid"] = grid_json(report);
  add_groups(document, report.summary.groups, report.summary.run);
  if (report.summary.run.args) document["args"] = value_to_json(*report.summary.run.args);
  if (!report.proof.empty()) document["proof"] = proof_json(report.proof);
  document["tensors"] = Table(report).columns();
  return document;
}

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
      {"warnings", json_texts(page.comparison.named.warnings)}};
  if (page.b.catalog().iteration) json["iteration"] = *page.b.catalog().iteration;
  return json;
}

extern const std::string_view kReportHtml, kReportCss, kReportJs;  // report.html, .css, .js

std::string report_html(std::string_view json) {
  const std::pair<std::string_view, std::string> parts[] = {
      {"/*CSS*/", std::string(kReportCss)},
      {"/*DATA*/", without_markup(json)},
      {"/*JS*/", std::string(kReportJs)},
  };
  std::string page;
  std::string_view rest = kReportHtml;
  for (const auto& [place, text] : parts) {
    const size_t at = rest.find(place);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + place.size());
  }
  return page.append(rest);
}

}  // namespace tools::inspect

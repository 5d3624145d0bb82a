// A report as the document that --json prints and the page holds.
#include "inspect/page/report_json.h"

#include <algorithm>
#include <functional>
#include <map>

#include <common/json.h>

#include "inspect/group_json.h"
#include "inspect/page/report_columns.h"
#include "inspect/value_text.h"
#include "inspect/verify_json.h"

namespace tools::inspect {
namespace {

using Json = nlohmann::json;
using optim::ReportedTensor;
using optim::ReportPage;

Json totals_json(const std::map<std::string, optim::Total>& totals) {
  Json json = Json::object();
  for (const auto& [name, total] : totals) {
    json[name] = {{"count", total.count}, {"bytes", total.count_bytes}};
  }
  return json;
}

Json checkpoint_json(const Page& page) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  const optim::Summary& summary = page.summary;
  Json json = {{"path", json_text(summary.path)},
               {"format", name(catalog.format)},
               {"format_text", json_text(format_words(page))},
               {"file_count", summary.files.count},
               {"file_bytes", summary.files.count_bytes},
               {"stored_tensor_bytes", summary.stored_tensor_bytes},
               {"types", totals_json(summary.dtypes)},
               {"kinds", totals_json(summary.kinds)}};
  if (catalog.iteration) json["iteration"] = *catalog.iteration;
  if (summary.parameter_count) json["parameters"] = *summary.parameter_count;
  if (summary.step) json["step"] = *summary.step;
  if (summary.writer_count) json["writing_ranks"] = *summary.writer_count;
  if (!summary.sharding.empty()) json["optimizer_sharding"] = json_text(summary.sharding);
  return json;
}

Json verify_json(const ReportPage& report) {
  const optim::VerifyReport& verify = report.verify;
  Json json = counts_json(verify);
  json["sound"] = !verify.findings.damaged();
  json["quick"] = report.is_sample;
  json["findings"] = Json::array();
  for (const ckpt::Finding& finding : verify.findings.findings) {
    json["findings"].push_back(to_json(finding));
  }
  json["not_checked"] = to_json(verify.not_checked);
  json["not_proven"] = to_json(verify.not_proven);
  for (size_t label = 0; label < ckpt::kByteLabelCount; ++label) {
    const auto each = static_cast<ckpt::ByteLabel>(label);
    json["bytes"][std::string(name(each))] = verify.findings.labelled_bytes(each);
  }
  return json;
}

Json optimizers_json(const optim::Summary& summary) {
  Json list = Json::array();
  for (const optim::OptimizerFacts& facts : summary.optimizers) {
    list.push_back({{"rule", facts.rule},
                    {"learning_rates", facts.learning_rates},
                    {"weight_decays", facts.weight_decays}});
    if (facts.parameter_count) list.back()["parameters"] = *facts.parameter_count;
  }
  return list;
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

}  // namespace

Json report_to_json(const Page& page, const ReportPage& report) {
  Json document = json_document();
  document["checkpoint"] = checkpoint_json(page);
  document["verify"] = verify_json(report);
  document["read"] = {{"is_sample", report.is_sample},
                      {"tensor_bytes", report.tensor_bytes},
                      {"looked_at_bytes", report.looked_at_bytes}};
  document["optimizers"] = optimizers_json(report.summary);
  document["grid"] = grid_json(report);
  for (const char* list : {"groups", "ranks"}) document[list] = Json::array();
  for (const auto& group : report.summary.groups.groups) {
    document["groups"].push_back(to_json(group, report.summary.run));
  }
  for (const auto& load : report.summary.groups.ranks) document["ranks"].push_back(to_json(load));
  if (!report.summary.groups.unnamed_reason.empty()) {
    document["unnamed_reason"] = json_text(report.summary.groups.unnamed_reason);
  }
  if (report.summary.run.args) document["args"] = value_to_json(*report.summary.run.args);
  if (!report.proof.empty()) document["proof"] = proof_json(report.proof);
  document["tensors"] = Table(report).columns();
  return document;
}

}  // namespace tools::inspect

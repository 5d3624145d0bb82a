#include "inspect/facts.h"

#include <cmath>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/text.h>

#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

std::vector<std::string> lines_of(const optim::OpenedTraining& checkpoint,
                                  const optim::RankParts& parts) {
  std::vector<std::string> lines = parts.lines();
  if (const auto file = optim::file_of_set(checkpoint)) {
    lines.push_back("this file is " + text_of(*file));
  }
  return lines;
}

using optim::LineageEvent;
using optim::LineageEventKind;
using optim::LineageRow;

nlohmann::json norms_json(const optim::StateNorms& norms) {
  nlohmann::json json = {{"states", nlohmann::json::object()},
                         {"nonfinite", norms.nonfinite_count}};
  if (norms.weights && std::isfinite(*norms.weights)) json["weights"] = *norms.weights;
  for (const auto& [state, norm] : norms.states) {
    if (std::isfinite(norm)) json["states"][json_text(state)] = norm;
  }
  return json;
}

std::string health_of(const LineageRow& row) {
  if (row.is_renamed) return "renamed";
  if (row.is_unsupported) return "unsupported";
  return row.health ? std::string(name(*row.health)) : "unreadable";
}

nlohmann::json iteration_json(const LineageRow& row) {
  nlohmann::json json = {{"iteration", row.named.folder.iteration},
                         {"path", json_text(row.named.folder.path.string())},
                         {"complete", row.is_complete},
                         {"health", health_of(row)},
                         {"learning_rates", nlohmann::json::array()}};
  for (const double rate : row.learning_rates) {
    if (std::isfinite(rate)) json["learning_rates"].push_back(rate);
  }
  if (!row.problem.empty()) json["problem"] = json_text(row.problem);
  if (row.file_bytes) json["bytes"] = *row.file_bytes;
  if (row.step) json["step"] = *row.step;
  if (row.loss_scale) json["loss_scale"] = *row.loss_scale;
  if (!row.norms) return json;
  json["norms"] = norms_json(*row.norms);
  json["modules"] = json_list(row.modules, [](const optim::ModuleNorms& module) -> nlohmann::json {
    return {{"module", json_text(module.module)}, {"norms", norms_json(module.norms)}};
  });
  return json;
}

nlohmann::json event_json(const optim::Lineage& lineage, const LineageEvent& event) {
  const auto folder_of = [&](size_t row) -> const ckpt::IterationFolder& {
    return lineage.rows.at(row).named.folder;
  };
  nlohmann::json json = {{"kind", name(event.kind)},
                         {"iteration", folder_of(event.row).iteration},
                         {"path", json_text(folder_of(event.row).path.string())},
                         {"key", json_text(event.key)}};
  if (event.since) json["since"] = folder_of(*event.since).iteration;
  if (event.kind == LineageEventKind::NotFinite) json["elements"] = event.count;
  return json;
}

nlohmann::json group_json(const optim::StoredGroup& group, const optim::RunFacts& run) {
  nlohmann::json json = {{"optimizer", group.optimizer},
                         {"rule", rule_of(group, run)},
                         {"group", group.group},
                         {"settings", nlohmann::json::object()}};
  if (!group.file.empty()) json["file"] = json_text(group.file);
  if (group.param_count) json["parameters"] = *group.param_count;
  if (group.element_count) json["elements"] = *group.element_count;
  for (const auto& [setting, value] : group.settings) {
    json["settings"][json_text(setting)] = value_to_json(value);
  }
  return json;
}

nlohmann::json load_json(const optim::RankLoad& load) {
  nlohmann::json json = {{"rank", load.rank},
                         {"parameters", load.param_count},
                         {"elements", load.element_count},
                         {"state_bytes", load.state_bytes}};
  if (load.cost) json["cost"] = *load.cost;
  return json;
}

nlohmann::json finding_json(const ckpt::Finding& finding) {
  nlohmann::json json = {
      {"check", name(finding.check)},
      {"severity", finding.severity == ckpt::Severity::Damage ? "damage" : "note"},
      {"problem", json_text(finding.problem)}};
  if (!finding.where.file.empty()) json["file"] = json_text(finding.where.file);
  if (finding.where.offset_bytes) json["offset_bytes"] = *finding.where.offset_bytes;
  if (!finding.where.key.empty()) json["key"] = json_text(finding.where.key);
  if (!finding.hint.empty()) json["hint"] = json_text(finding.hint);
  return json;
}

nlohmann::json not_checked_json(const optim::NotChecked& each) {
  return {{"what", json_text(each.what)}, {"reason", json_text(each.reason)}};
}

}  // namespace

std::string shape_text_of(const ckpt::Extents& shape, const ckpt::TensorPart* part) {
  const std::string text = shape_text(shape);
  if (part == nullptr || part->is_whole) return text;
  if (!part->shape) return text + ", a part";
  return text + " of " + shape_text(*part->shape);
}

nlohmann::json to_json(const ckpt::TensorPart& part) {
  nlohmann::json json = {{"text", json_text(part.words)}, {"whole", part.is_whole}};
  if (part.shape) json["shape"] = *part.shape;
  return json;
}

nlohmann::json to_json(const optim::FileOfSet& file) {
  nlohmann::json json = {{"text", text_of(file)},
                         {"present", json_texts(file.present)},
                         {"missing", json_texts(file.missing)}};
  if (!file.framework.empty()) json["framework"] = file.framework;
  if (file.count) json.update({{"number", file.number}, {"count", *file.count}});
  return json;
}

void print_parts(Console& console, const optim::OpenedTraining& checkpoint,
                 const optim::RankParts& parts) {
  if (console.options().quiet) return;
  for (const std::string& line : lines_of(checkpoint, parts)) console.print_text(line);
}

void note_parts(Console& console, const optim::OpenedTraining& checkpoint) {
  for (const std::string& line : lines_of(checkpoint, optim::RankParts(checkpoint))) {
    console.note(line);
  }
}

void warn_of_elsewhere(Console& console, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::string first = ckpt::escaped(names.front());
  console.warn(names.size() == 1
                   ? first +
                         " is a link that leads out of the root and was not checked; "
                         "--follow-links includes it"
                   : first + " and " + std::to_string(names.size() - 1) +
                         " more are links that lead out of the root and were not checked; "
                         "--follow-links includes them");
}

nlohmann::json verify_json(const optim::VerifyReport& report, bool quick) {
  const ckpt::Findings& findings = report.findings;
  nlohmann::json bytes = nlohmann::json::object();
  for (size_t label = 0; label < ckpt::kByteLabelCount; ++label) {
    const auto each = static_cast<ckpt::ByteLabel>(label);
    bytes[std::string(name(each))] = findings.labelled_bytes(each);
  }
  return {{"sound", !findings.damaged()},
          {"quick", quick},
          {"findings", json_list(findings.findings, finding_json)},
          {"not_checked", json_list(report.not_checked, not_checked_json)},
          {"not_proven", json_list(report.not_proven, not_checked_json)},
          {"bytes", std::move(bytes)},
          {"allowed_nonfinite",
           {{"tensors", report.allowed_tensor_count}, {"values", report.allowed_value_count}}},
          {"checked",
           {{"checksums", findings.compared_checksums},
            {"masters", report.master_count},
            {"states", report.state_count},
            {"tensors", report.tensor_count},
            {"groups", report.group_count},
            {"promised_states", report.promised_state_count}}},
          {"passed",
           {{"checksums", findings.compared_checksums - findings.failed_checksums},
            {"masters", report.matching_master_count},
            {"states", report.sound_state_count},
            {"tensors", report.sound_tensor_count},
            {"promised_states", report.kept_state_count},
            {"promised_digest", report.has_promised_digest}}}};
}

void add_groups(nlohmann::json& document, const optim::GroupReport& report,
                const optim::RunFacts& run) {
  document["groups"] =
      json_list(report.groups, [&](const auto& group) { return group_json(group, run); });
  document["ranks"] = json_list(report.ranks, load_json);
  if (!report.unnamed_reason.empty()) {
    document["unnamed_reason"] = json_text(report.unnamed_reason);
  }
}

nlohmann::json to_json(const std::map<std::string, optim::Total>& totals) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, total] : totals) {
    json[name] = {{"count", total.count}, {"bytes", total.count_bytes}};
  }
  return json;
}

nlohmann::json to_json(const std::vector<optim::OptimizerFacts>& optimizers) {
  return json_list(optimizers, [](const optim::OptimizerFacts& facts) {
    nlohmann::json json = {{"rule", facts.rule},
                           {"learning_rates", facts.learning_rates},
                           {"weight_decays", facts.weight_decays}};
    if (facts.parameter_count) json["parameters"] = *facts.parameter_count;
    return json;
  });
}

nlohmann::json lineage_to_json(const optim::Lineage& lineage) {
  nlohmann::json document = json_document();
  document["iterations"] = json_list(lineage.rows, iteration_json);
  document["events"] = json_list(
      lineage.events, [&](const LineageEvent& event) { return event_json(lineage, event); });
  document["elsewhere"] = json_texts(lineage.elsewhere);
  return document;
}

}  // namespace tools::inspect

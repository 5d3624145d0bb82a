// The document of ckpt-inspect lineage --json (docs/schema/lineage.json).
#include "inspect/lineage_json.h"

#include <cmath>

#include <common/json.h>

#include "inspect/elsewhere.h"

namespace tools::inspect {
namespace {

using optim::LineageEvent;
using optim::LineageEventKind;
using optim::LineageRow;

nlohmann::json to_json(const optim::StateNorms& norms) {
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
  return row.health ? std::string(name(*row.health)) : "unreadable";
}

nlohmann::json to_json(const LineageRow& row) {
  nlohmann::json json = {{"iteration", row.folder.iteration},
                         {"path", json_text(row.folder.path.string())},
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
  json["norms"] = to_json(*row.norms);
  json["modules"] = nlohmann::json::array();
  for (const optim::ModuleNorms& module : row.modules) {
    json["modules"].push_back(
        {{"module", json_text(module.module)}, {"norms", to_json(module.norms)}});
  }
  return json;
}

nlohmann::json to_json(const LineageEvent& event) {
  nlohmann::json json = {
      {"kind", name(event.kind)}, {"iteration", event.iteration}, {"key", json_text(event.key)}};
  if (event.since) json["since"] = *event.since;
  if (event.kind == LineageEventKind::NotFinite) json["elements"] = event.count;
  return json;
}

}  // namespace

nlohmann::json lineage_to_json(const optim::Lineage& lineage) {
  nlohmann::json document = json_document();
  document["iterations"] = nlohmann::json::array();
  document["events"] = nlohmann::json::array();
  for (const LineageRow& row : lineage.rows) document["iterations"].push_back(to_json(row));
  for (const LineageEvent& event : lineage.events) document["events"].push_back(to_json(event));
  document["elsewhere"] = names_to_json(lineage.elsewhere);
  return document;
}

}  // namespace tools::inspect

#include "inspect/summary_json.h"

#include <common/json.h>

#include "inspect/listing.h"

namespace tools::inspect {
namespace {

constexpr size_t kLargestListed = 10;

nlohmann::json to_json(const std::map<std::string, Total>& totals) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, total] : totals) {
    json[name] = {{"count", total.count}, {"bytes", total.count_bytes}};
  }
  return json;
}

nlohmann::json to_json(const ModuleTable& modules) {
  nlohmann::json json = nlohmann::json::array();
  for (const ModuleRow& row : modules.rows) {
    json.push_back({{"name", json_text(row.name)},
                    {"parameters", row.size.parameter_count},
                    {"model_bytes", row.size.model_bytes},
                    {"optimizer_bytes", row.size.optimizer_bytes}});
    if (row.layer_count != 0) json.back()["layers"] = row.layer_count;
  }
  return json;
}

nlohmann::json largest_json(const std::vector<optim::LogicalTensor>& tensors) {
  nlohmann::json json = nlohmann::json::array();
  for (const optim::LogicalTensor* tensor : largest_tensors(tensors, kLargestListed)) {
    json.push_back({{"name", json_text(tensor->name)},
                    {"shape", tensor->shape},
                    {"dtype", ckpt::name(tensor->dtype)},
                    {"bytes", tensor->count_bytes}});
  }
  return json;
}

nlohmann::json rules_json(const std::vector<OptimizerFacts>& optimizers) {
  nlohmann::json json = nlohmann::json::array();
  for (const OptimizerFacts& facts : optimizers) {
    json.push_back({{"rule", facts.rule},
                    {"learning_rates", facts.learning_rates},
                    {"weight_decays", facts.weight_decays}});
    if (facts.parameter_count) json.back()["parameters"] = *facts.parameter_count;
  }
  return json;
}

nlohmann::json optimizer_json(const Overview& overview) {
  nlohmann::json json = {{"rules", rules_json(overview.optimizers)}, {"states", overview.states}};
  for (auto& state : json["states"]) state = json_text(state.get<std::string>());
  if (!overview.sharding.empty()) json["sharding"] = json_text(overview.sharding);
  if (overview.step && !overview.states.empty()) json["step"] = *overview.step;
  json["balance"] = nlohmann::json::array();
  for (const optim::RankLoad& load : overview.groups.ranks) {
    if (load.cost) json["balance"].push_back({{"rank", load.rank}, {"cost", *load.cost}});
  }
  return json;
}

nlohmann::json to_json(const Status& status) {
  nlohmann::json json = {{"health", name(status.health)}, {"findings", status.problem_count}};
  if (!status.problem.empty()) json["problem"] = json_text(status.problem);
  return json;
}

nlohmann::json files_json(const ckpt::Catalog& catalog) {
  nlohmann::json json = nlohmann::json::array();
  for (const ckpt::FileEntry& file : catalog.files) {
    json.push_back({{"path", json_text(file.path)}, {"bytes", file.count_bytes}});
  }
  return json;
}

}  // namespace

void print_summary_as_json(Console& console, const ckpt::Checkpoint& checkpoint,
                           const Overview& overview) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  nlohmann::json document = json_document(2);
  document["path"] = json_text(overview.path);
  document["format"] = name(catalog.format);
  document["format_text"] = overview.format;
  if (!overview.format_variant.empty()) document["format_variant"] = overview.format_variant;
  if (catalog.iteration) document["iteration"] = *catalog.iteration;
  if (catalog.iteration) document["iteration_from_tracker"] = overview.is_of_tracker;
  document["writers"] = nlohmann::json::object();
  for (const auto& [writer, version] : overview.writers) {
    document["writers"][writer] = json_text(version);
  }
  document["parallel"] = nlohmann::json::object();
  for (const auto& [size, value] : overview.run.sizes) document["parallel"][size] = value;
  if (overview.writer_count) document["writing_ranks"] = *overview.writer_count;
  if (overview.parameter_count) document["parameters"] = *overview.parameter_count;
  if (!overview.contents.uncounted_reason.empty()) {
    document["uncounted_reason"] = overview.contents.uncounted_reason;
  }
  document["tensor_bytes"] = overview.stored_tensor_bytes;
  document["file_count"] = overview.files.count;
  document["file_bytes"] = overview.files.count_bytes;
  document["kinds"] = to_json(overview.kinds);
  document["dtypes"] = to_json(overview.dtypes);
  document["modules"] = to_json(overview.modules);
  document["unnamed_optimizer_bytes"] = overview.modules.unnamed_optimizer_bytes;
  document["largest"] = largest_json(overview.contents.tensors);
  document["optimizer"] = optimizer_json(overview);
  document["status"] = to_json(overview.status);
  document["files"] = files_json(catalog);
  for (const std::string& path : overview.status.missing) {
    document["missing_files"].push_back(json_text(path));
  }
  print_json(console, document);
}

}  // namespace tools::inspect

#include "inspect/summary_json.h"

#include <ckpt/error.h>
#include <common/json.h>

#include "inspect/part_text.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr size_t kLargestListed = 10;

nlohmann::json totals_json(const std::map<std::string, optim::Total>& totals) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, total] : totals) {
    json[name] = {{"count", total.count}, {"bytes", total.count_bytes}};
  }
  return json;
}

nlohmann::json writers_json(const optim::Summary& summary) {
  nlohmann::json json = nlohmann::json::object();
  if (!summary.run.checkpoint_version.empty()) {
    json["megatron_checkpoint_version"] = json_text(summary.run.checkpoint_version);
  }
  const auto& version = summary.dcp_version;
  if (!version) return json;
  json["dcp_metadata_version"] = json_text(
      version->is(ckpt::Kind::Str) ? ckpt::escaped(version->text()) : value_text(*version));
  return json;
}

nlohmann::json modules_json(const optim::ModuleTable& modules) {
  nlohmann::json json = nlohmann::json::array();
  for (const optim::ModuleRow& row : modules.rows) {
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
  for (const optim::LogicalTensor* tensor : optim::largest_tensors(tensors, kLargestListed)) {
    json.push_back({{"name", json_text(tensor->name)},
                    {"shape", tensor->shape},
                    {"dtype", ckpt::name(tensor->dtype)},
                    {"bytes", tensor->count_bytes}});
  }
  return json;
}

nlohmann::json rules_json(const std::vector<optim::OptimizerFacts>& optimizers) {
  nlohmann::json json = nlohmann::json::array();
  for (const optim::OptimizerFacts& facts : optimizers) {
    json.push_back({{"rule", facts.rule},
                    {"learning_rates", facts.learning_rates},
                    {"weight_decays", facts.weight_decays}});
    if (facts.parameter_count) json.back()["parameters"] = *facts.parameter_count;
  }
  return json;
}

nlohmann::json optimizer_json(const optim::Summary& summary) {
  nlohmann::json json = {{"rules", rules_json(summary.optimizers)}, {"states", summary.states}};
  for (auto& state : json["states"]) state = json_text(state.get<std::string>());
  if (!summary.sharding.empty()) json["sharding"] = json_text(summary.sharding);
  if (summary.step && !summary.states.empty()) json["step"] = *summary.step;
  json["balance"] = nlohmann::json::array();
  for (const optim::RankLoad& load : summary.groups.ranks) {
    if (load.cost) json["balance"].push_back({{"rank", load.rank}, {"cost", *load.cost}});
  }
  return json;
}

nlohmann::json status_json(const optim::Status& status) {
  nlohmann::json json = {{"health", name(status.health)}, {"findings", status.problem_count}};
  if (!status.problem.empty()) json["problem"] = json_text(status.problem);
  for (const std::string& line : status.incomplete) json["incomplete"].push_back(json_text(line));
  return json;
}

nlohmann::json beside_json(const std::vector<ckpt::FileBeside>& beside) {
  nlohmann::json json = nlohmann::json::array();
  for (const ckpt::FileBeside& file : beside) {
    json.push_back({{"path", json_text(file.path)}, {"what", json_text(file.what)}});
    if (!file.is_folder) json.back()["bytes"] = file.count_bytes;
  }
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

void print_incomplete_as_json(Console& console, const std::string& path,
                              const std::string& problem) {
  const nlohmann::json none = nlohmann::json::object();
  nlohmann::json document = json_document(2);
  document["path"] = json_text(path);
  document["format_text"] = "a checkpoint that cannot be opened";
  for (const char* field :
       {"tensor_bytes", "file_count", "file_bytes", "unnamed_optimizer_bytes"}) {
    document[field] = 0;
  }
  for (const char* field : {"writers", "parallel", "kinds", "dtypes"}) document[field] = none;
  for (const char* field : {"modules", "largest", "files"}) {
    document[field] = nlohmann::json::array();
  }
  document["optimizer"] = optimizer_json({});
  optim::Status status;
  status.health = optim::Health::Incomplete;
  status.problem = problem;
  status.problem_count = 1;
  status.incomplete = {problem};
  document["status"] = status_json(status);
  print_json(console, document);
}

void print_summary_as_json(Console& console, const Page& page) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  const optim::Summary& summary = page.summary;
  nlohmann::json document = json_document(2);
  document["path"] = json_text(summary.path);
  document["format"] = name(catalog.format);
  document["format_text"] = format_words(page);
  if (!summary.variant.empty()) document["format_variant"] = summary.variant;
  if (catalog.iteration) document["iteration"] = *catalog.iteration;
  if (catalog.iteration) document["iteration_from_tracker"] = page.is_of_tracker;
  document["writers"] = writers_json(summary);
  document["parallel"] = nlohmann::json::object();
  for (const auto& [size, value] : summary.run.sizes) document["parallel"][size] = value;
  if (summary.writer_count) document["writing_ranks"] = *summary.writer_count;
  if (summary.parameter_count) document["parameters"] = *summary.parameter_count;
  if (!summary.contents.uncounted_reason.empty()) {
    document["uncounted_reason"] = summary.contents.uncounted_reason;
  }
  document["tensor_bytes"] = summary.stored_tensor_bytes;
  document["file_count"] = summary.files.count;
  document["file_bytes"] = summary.files.count_bytes;
  document["kinds"] = totals_json(summary.kinds);
  document["dtypes"] = totals_json(summary.dtypes);
  if (summary.file_of_set) document["file_of_set"] = to_json(*summary.file_of_set);
  for (const std::string& line : summary.parts.lines()) document["parts"].push_back(line);
  document["modules"] = modules_json(summary.modules);
  document["unnamed_optimizer_bytes"] = summary.modules.unnamed_optimizer_bytes;
  document["largest"] = largest_json(summary.contents.tensors);
  document["optimizer"] = optimizer_json(summary);
  document["status"] = status_json(summary.status);
  document["files"] = files_json(catalog);
  if (!summary.beside.empty()) document["beside"] = beside_json(summary.beside);
  for (const std::string& path : summary.status.missing) {
    document["missing_files"].push_back(json_text(path));
  }
  print_json(console, document);
}

}  // namespace tools::inspect

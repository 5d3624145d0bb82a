#include <algorithm>
#include <set>
#include <span>

#include <ckpt/inventory.h>
#include <training/megatron_folders.h>
#include <training/optimizer_facts.h>
#include <training/run_facts.h>

#include "args/common_state.h"
#include "args/run_args.h"
#include "report/flat_groups.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kSizes[] = {"tensor_model_parallel_size",
                                  "pipeline_model_parallel_size",
                                  "virtual_pipeline_model_parallel_size",
                                  "context_parallel_size",
                                  "expert_model_parallel_size",
                                  "expert_tensor_parallel_size",
                                  "data_parallel_size",
                                  "world_size"};

// The root of the file or object that has `args`.
std::optional<Value> common_root(const OpenedTraining& checkpoint, RunFacts& facts) {
  for (const auto& [path, file, document] : documents_of(checkpoint)) {
    if (args_of(document->tree.root())) return document->tree.root();
  }
  if (checkpoint.catalog().format != ckpt::Format::TorchDist) return std::nullopt;
  const auto common = unless_damaged([&] { return checkpoint.common_state(); });
  if (!common || *common == nullptr) return std::nullopt;
  facts.document = (*common)->document;
  return facts.document->tree.root();
}

void add_version(const Value& root, RunFacts& facts) {
  const auto version = root.is(Kind::Dict) ? root.find("checkpoint_version") : std::nullopt;
  if (!version) return;
  if (version->is(Kind::Str)) facts.checkpoint_version = version->text();
  const bool is_number = version->is(Kind::Float) || version->is(Kind::Int);
  if (is_number) facts.checkpoint_version = std::to_string(version->as_float());
  while (is_number && facts.checkpoint_version.ends_with("00")) facts.checkpoint_version.pop_back();
}

bool has(const StoredGroup& group, std::string_view name) {
  return setting_of(group, name).has_value();
}

// Megatron decouples weight decay unless its arguments say otherwise.
std::string adam_name(const StoredGroup& group, const RunFacts& run) {
  const auto decoupled = setting_of(group, "decoupled_weight_decay");
  const bool is_decoupled = decoupled && decoupled->is(Kind::Bool)
                                ? decoupled->as_bool()
                                : run.decoupled_weight_decay.value_or(run.args.has_value());
  return is_decoupled ? "AdamW" : "Adam";
}

void add_once(std::optional<double> value, std::vector<double>& values) {
  if (value && std::ranges::find(values, *value) == values.end()) values.push_back(*value);
}

std::string identity(const StoredGroup& group) {
  std::string text = std::to_string(group.optimizer) + "." + std::to_string(group.group);
  for (const auto& [key, value] : group.settings) {
    text += "\n" + key + "=" + signature_of(value).value_or("");
  }
  return text;
}

}  // namespace

RunFacts run_facts(const OpenedTraining& checkpoint) {
  RunFacts facts;
  const auto root = common_root(checkpoint, facts);
  if (!root) return facts;
  facts.args = args_of(*root);
  const bool has_file = checkpoint.document(kMegatronFolders.common_file) != nullptr;
  facts.release = release_of(has_file, *root);
  add_version(*root, facts);
  if (!facts.args) return facts;
  for (const char* name : kSizes) {
    const auto size = facts.args->find(name);
    if (size && size->is(Kind::Int)) facts.sizes.emplace_back(name, size->as_int());
  }
  const auto optimizer = facts.args->find("optimizer");
  if (optimizer && optimizer->is(Kind::Str)) facts.optimizer = optimizer->text();
  const auto decoupled = facts.args->find("decoupled_weight_decay");
  if (decoupled && decoupled->is(Kind::Bool)) facts.decoupled_weight_decay = decoupled->as_bool();
  return facts;
}

std::optional<Value> setting_of(const StoredGroup& group, std::string_view name) {
  const auto found = std::ranges::find(group.settings, name, &std::pair<std::string, Value>::first);
  return found != group.settings.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<double> number_of(const StoredGroup& group, std::string_view name) {
  const auto value = setting_of(group, name);
  const bool is_number = value && (value->is(Kind::Float) || value->is(Kind::Int));
  return is_number ? std::optional(value->as_float()) : std::nullopt;
}

// By the settings that only its rule has.
std::string rule_of(const StoredGroup& group, const RunFacts& run) {
  if (has(group, "shampoo_beta")) return "SOAP";
  if (has(group, "betas")) return has(group, "eps") ? adam_name(group, run) : "Lion";
  if (has(group, "dampening")) return "SGD";
  const bool is_muon = run.optimizer.find("muon") != std::string::npos;
  if (has(group, "ns_steps") || has(group, "num_ns_steps")) return "Muon";
  if (is_muon && has(group, "momentum")) {
    return run.optimizer.find("adaptive") != std::string::npos ? "AdaptiveMuon" : "Muon";
  }
  return "optimizer";
}

std::vector<OptimizerFacts> describe_optimizers(std::span<const StoredGroup> groups,
                                                const RunFacts& run) {
  std::set<std::string> files;
  for (const StoredGroup& group : groups) files.insert(group.file);
  std::set<std::string> seen;
  std::vector<OptimizerFacts> all;
  for (const StoredGroup& group : groups) {
    if (!seen.insert(identity(group)).second) continue;
    const std::string rule = rule_of(group, run);
    auto facts = std::ranges::find(all, rule, &OptimizerFacts::rule);
    if (facts == all.end()) {
      all.push_back({rule, 0, {}, {}});
      facts = all.end() - 1;
    }
    const bool is_counted = facts->parameter_count && group.param_count && files.size() == 1;
    facts->parameter_count =
        is_counted ? std::optional(*facts->parameter_count + *group.param_count) : std::nullopt;
    add_once(number_of(group, "lr"), facts->learning_rates);
    add_once(number_of(group, "weight_decay"), facts->weight_decays);
  }
  return all;
}

std::optional<int64_t> step_of_groups(std::span<const StoredGroup> groups) {
  std::optional<int64_t> step;
  for (const StoredGroup& group : groups) {
    const auto stated = number_of(group, "step");
    if (stated && *stated >= 0 && *stated < 1e18) {
      step = std::max(step.value_or(0), static_cast<int64_t>(*stated));
    }
  }
  return step;
}

std::vector<double> balance_of(std::span<const RankLoad> ranks) {
  double total = 0;
  for (const RankLoad& load : ranks) total += load.cost.value_or(0);
  if (ranks.size() < 2 || total <= 0) return {};
  const double mean = total / static_cast<double>(ranks.size());
  std::vector<double> shares;
  for (const RankLoad& load : ranks) shares.push_back(load.cost.value_or(0) / mean);
  return shares;
}

}  // namespace optim

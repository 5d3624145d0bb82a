#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <span>

#include <ckpt/inventory.h>
#include <training/megatron_folders.h>
#include <training/optimizer_facts.h>
#include <training/run_facts.h>
#include <training/trainer_facts.h>

#include "args/common_state.h"
#include "args/run_args.h"
#include "report/flat_groups.h"
#include "state/lightning_meta.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

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

constexpr uint64_t kObjectBytesMax = 64 << 10;  // of a number in a DCP folder
constexpr uint64_t kHeadBytes = 64 << 10;       // of a file beside

// Programs that name themselves at the root of what they save.
struct NamedTrainer {
  std::string_view version_key, trainer;
};
constexpr NamedTrainer kTrainers[] = {
    {"pytorch-lightning_version", "Lightning"},
    {"ds_version", "DeepSpeed"},
};
constexpr const char* kEpochKeys[] = {"epoch"};
constexpr const char* kStepKeys[] = {"global_step", "global_steps", "iter_num", "step",
                                     "iteration"};

// What stands at the root under a key; the document that holds it.
struct RootValue {
  Value value;
  std::shared_ptr<const Document> document;
};
using RootKeys = std::function<std::optional<RootValue>(const std::string& key)>;

std::optional<double> number_of(const Value& value) {
  const bool is_number = value.is(Kind::Int) || value.is(Kind::Float);
  return is_number && std::isfinite(value.as_float()) ? std::optional(value.as_float())
                                                      : std::nullopt;
}

std::optional<int64_t> count_of(double number) {
  const bool is_count = number >= 0 && number < 1e15 && std::floor(number) == number;
  return is_count ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

void add_root(const RootKeys& find, TrainerFacts& facts) {
  for (const NamedTrainer& row : kTrainers) {
    const auto version = find(std::string(row.version_key));
    if (!version || !version->value.is(Kind::Str)) continue;
    facts.trainer = row.trainer;
    facts.version = version->value.text();
    break;
  }
  for (const char* key : kEpochKeys) {
    const auto epoch = find(key);
    if (epoch && !facts.epoch) facts.epoch = number_of(epoch->value);
  }
  for (const char* key : kStepKeys) {
    const auto step = facts.step ? std::nullopt : find(key);
    const auto number = step ? number_of(step->value) : std::nullopt;
    facts.step = number ? count_of(*number) : facts.step;
    if (number && facts.step) facts.step_key = key;
  }
}

RootKeys keys_of_file(const OpenedTraining& checkpoint) {
  const Document* const document = checkpoint.state();
  return [document](const std::string& key) -> std::optional<RootValue> {
    if (document == nullptr || !document->tree.root().is(Kind::Dict)) return std::nullopt;
    const auto value = document->tree.root().find(key);
    return value ? std::optional(RootValue{*value, nullptr}) : std::nullopt;
  };
}

// A DCP folder has an object of its own for each, or a tensor.
RootKeys keys_of_folder(const OpenedTraining& checkpoint) {
  return [&checkpoint](const std::string& key) -> std::optional<RootValue> {
    auto document = std::make_shared<Document>();
    if (const auto* const tensor = checkpoint.catalog().find_tensor(key, "")) {
      const auto number = scalar_of(*tensor, checkpoint);
      if (!number) return std::nullopt;
      document->tree.set_root(document->tree.real(*number));
      return RootValue{document->tree.root(), document};
    }
    for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
      const bool is_it = object.key == key && object.file.empty() && object.region &&
                         object.region->bytes.count_bytes <= kObjectBytesMax;
      if (!is_it) continue;
      *document = checkpoint.read_object(object);
      return RootValue{document->tree.root(), document};
    }
    return std::nullopt;
  };
}

// --- files beside ---

// Takes numbers and texts of the outermost object, as far as the text is JSON: the log of a Trainer
// may have NaN in it.
class OuterFields final : public json::json_sax_t {
 public:
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> texts;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t value) override { return take(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) override { return take(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return take(value); }
  bool string(std::string& value) override {
    if (depth_ == 1) texts.try_emplace(key_, value);
    return true;
  }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(size_t) override { return ++depth_ < kDepthMax; }
  bool key(std::string& value) override {
    if (depth_ == 1) key_ = value;
    return true;
  }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(size_t) override { return ++depth_ < kDepthMax; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  static constexpr int kDepthMax = 64;
  bool take(double value) {
    if (depth_ == 1) numbers.try_emplace(key_, value);
    return true;
  }
  int depth_ = 0;
  std::string key_;
};

// Of a long file the start: the Trainer sorts its keys, and its log comes after its counts.
OuterFields fields_beside(const OpenedTraining& checkpoint, const std::string& name) {
  OuterFields fields;
  const ckpt::Folder& source = checkpoint.source();
  if (source.kind_of(checkpoint.folder() / name) != ckpt::EntryKind::File) return fields;
  const auto links =
      checkpoint.limits().follow_links ? ckpt::Links::MayLeadOut : ckpt::Links::StayInside;
  const auto file = source.open(checkpoint.folder(), {name, checkpoint.shown_name(name), links});
  std::string text(std::min(file->size_bytes(), kHeadBytes), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  json::sax_parse(text, &fields);
  return fields;
}

void add_trainer_of_transformers(const OpenedTraining& checkpoint, TrainerFacts& facts) {
  constexpr const char* kName = "trainer_state.json";
  const OuterFields fields = fields_beside(checkpoint, kName);
  const auto step = fields.numbers.find("global_step");
  if (step == fields.numbers.end()) return;
  facts = {};
  facts.trainer = "Hugging Face Trainer";
  facts.source = kName;
  facts.step = count_of(step->second);
  facts.step_key = step->first;
  const auto epoch = fields.numbers.find("epoch");
  if (epoch != fields.numbers.end()) facts.epoch = epoch->second;
  const OuterFields config = fields_beside(checkpoint, "config.json");
  const auto version = config.texts.find("transformers_version");
  if (version != config.texts.end()) facts.version = "transformers " + version->second;
}

// What its save_state() leaves for the first rank.
void add_accelerate(const OpenedTraining& checkpoint, TrainerFacts& facts) {
  constexpr const char* kName = "random_states_0.pkl";
  if (!checkpoint.source().has(checkpoint.folder() / kName)) return;
  facts.trainer = "Accelerate";
  facts.source = kName;
}

// Beside the .metadata of what it saves in shards; its keys tell that it was there.
void add_lightning(const OpenedTraining& checkpoint, TrainerFacts& facts) {
  const std::string name = kLightningMeta;
  if (lacks_lightning_meta(checkpoint)) {
    facts.trainer = "Lightning";
    facts.source = name + " is missing: Lightning cannot resume without it";
  }
  const bool is_there =
      checkpoint.source().kind_of(checkpoint.folder() / name) == ckpt::EntryKind::File;
  if (!is_there || checkpoint.catalog().format != ckpt::Format::TorchDist) return;
  ckpt::OpenOptions opening;
  opening.limits = checkpoint.limits();
  const OpenedTraining meta = open_checkpoint(checkpoint.folder() / name, opening);
  TrainerFacts found;
  add_root(keys_of_file(meta), found);
  if (found.trainer != "Lightning") return;
  facts = std::move(found);
  facts.source = name;
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

TrainerFacts trainer_facts(const OpenedTraining& checkpoint) {
  TrainerFacts facts;
  if (is_megatron(checkpoint)) return facts;
  try {
    const bool is_folder = checkpoint.catalog().format == ckpt::Format::TorchDist;
    add_root(is_folder ? keys_of_folder(checkpoint) : keys_of_file(checkpoint), facts);
    if (facts.empty()) add_trainer_of_transformers(checkpoint, facts);
    if (facts.empty()) add_accelerate(checkpoint, facts);
    if (facts.empty()) add_lightning(checkpoint, facts);
  } catch (const Error&) {
    return {};  // what is wrong with it is the status's to say
  }
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

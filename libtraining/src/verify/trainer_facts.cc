// What a checkpoint that is not Megatron's says of the program that wrote it.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include <ckpt/statistics.h>
#include <training/megatron_folders.h>
#include <training/trainer_facts.h>

#include "state/lightning_meta.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

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
constexpr const char* kStepKeys[] = {"global_step", "global_steps", "iter_num",
                                     "step",        "iteration",    kTitanStepKey};

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
  const OuterFields fields = fields_beside(checkpoint, kTrainerState);
  const auto step = fields.numbers.find("global_step");
  if (step == fields.numbers.end()) return;
  facts = {};
  facts.trainer = "Hugging Face Trainer";
  facts.source = kTrainerState;
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
  if (!checkpoint.source().has(checkpoint.folder() / kAccelerateStates)) return;
  facts.trainer = "Accelerate";
  facts.source = kAccelerateStates;
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

}  // namespace

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

std::optional<double> scalar_of(const TensorEntry& tensor, const OpenedTraining& checkpoint) {
  if (ckpt::element_count(tensor.shape) != 1) return std::nullopt;
  const auto moments = ckpt::make_statistics(tensor, checkpoint, {0}).moments;
  return moments && std::isfinite(moments->min) ? std::optional(moments->min) : std::nullopt;
}

}  // namespace optim

// shardwise-proof.json:
//
//   {"schema_version": 1, "tool": "shardwise 0.1.0", "folder": "iter_0000003" or null,
//    "source": {"format": "torch", "sizes": {...}, "states": [STATE, ...]}, "target": {...},
//    "masters_proven": true, "logical_digest": "64 hexadecimal digits" or null,
//    "not_carried": [{"what": ..., "reason": ..., "changed": false}, ...]}
//
//   STATE   {"state": "exp_avg", "experts": false, "tensors": 12, "elements": 3000}
#include "proof/proof_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <optim/rule_table.h>
#include <training/conservation.h>
#include <training/megatron_folders.h>

#include "grid/build_state.h"
#include "grid/placement.h"
#include "model/tensor_names.h"
#include "state/remainders.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr int kSchemaVersion = 1;
constexpr size_t kDigestDigits = 64;

// Names of a file may be any bytes; JSON holds UTF-8 alone.
std::string json_text(const std::string& text) { return ckpt::escaped(text); }

// The text is put together here: where there is no memory, destroying an array or an object of
// nlohmann's ends the process.
std::string quoted(const std::string& text) { return json(json_text(text)).dump(); }

std::string field(const char* key, const std::string& value) {
  return "\"" + std::string(key) + "\": " + value;
}
std::string field(const char* key, uint64_t value) { return field(key, std::to_string(value)); }
std::string field(const char* key, bool value) {
  return field(key, std::string(value ? "true" : "false"));
}
std::string null_or_quoted(const std::string& text) { return text.empty() ? "null" : quoted(text); }

// Lines between two brackets, which are indented by so many blanks, and the lines by one more.
std::string block(const char* brackets, const std::vector<std::string>& lines, size_t indent) {
  if (lines.empty()) return std::string(brackets, 2);
  std::string text(1, brackets[0]);
  for (const std::string& line : lines) {
    text += (text.size() == 1 ? "\n" : ",\n") + std::string(indent + 1, ' ') + line;
  }
  return text + "\n" + std::string(indent, ' ') + brackets[1];
}

std::string text_of(const ParallelSizes& sizes, size_t indent) {
  return block("{}",
               {field("tensor_parallel", uint64_t{sizes.tensor_parallel}),
                field("pipeline_parallel", uint64_t{sizes.pipeline_parallel}),
                field("virtual_pipeline_parallel", uint64_t{sizes.virtual_pipeline_parallel}),
                field("context_parallel", uint64_t{sizes.context_parallel}),
                field("data_parallel", uint64_t{sizes.data_parallel}),
                field("expert_parallel", uint64_t{sizes.expert_parallel}),
                field("expert_tensor_parallel", uint64_t{sizes.expert_tensor_parallel}),
                field("world_size", uint64_t{sizes.world()})},
               indent);
}

std::string text_of(const ProofSide& side) {
  std::vector<std::string> states;
  for (const StateCount& count : side.states) {
    states.push_back("{" + field("state", quoted(count.state)) + ", " +
                     field("experts", count.is_of_experts) + ", " +
                     field("tensors", count.tensor_count) + ", " +
                     field("elements", count.element_count) + "}");
  }
  std::vector<std::string> lines = {field("format", quoted(std::string(name(side.format)))),
                                    field("sizes", text_of(side.grid.sizes, 2))};
  const std::string& layout = side.grid.pipeline.pipeline_model_parallel_layout;
  if (!layout.empty()) lines.push_back(field("pipeline_layout", quoted(layout)));
  lines.push_back(field("states", block("[]", states, 2)));
  return block("{}", lines, 1);
}

[[noreturn]] void corrupt(const std::string& file, const char* key, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = file, .key = key}, problem,
                    "it says what a conversion promised of this folder; without it the rest can "
                    "still be checked");
}

uint64_t count_in(const json& state, const char* key, const std::string& file) {
  const auto found = state.find(key);
  if (found == state.end() || !found->is_number_unsigned()) {
    corrupt(file, key, "is not a count");
  }
  return found->get<uint64_t>();
}

StateCount parse_state(const json& state, const std::string& file) {
  if (!state.is_object()) corrupt(file, "target/states", "is not a list of objects");
  const auto name = state.find("state"), experts = state.find("experts");
  if (name == state.end() || !name->is_string()) corrupt(file, "state", "is not a name");
  if (experts == state.end() || !experts->is_boolean()) {
    corrupt(file, "experts", "is not true or false");
  }
  return {name->get<std::string>(), experts->get<bool>(), count_in(state, "tensors", file),
          count_in(state, "elements", file)};
}

json parse(const std::string& text, const std::string& file) {
  json root = json::parse(text, nullptr, false);
  if (!root.is_object()) corrupt(file, "", "is not a JSON object");
  const auto version = root.find("schema_version");
  if (version == root.end() || *version != kSchemaVersion) {
    corrupt(file, "schema_version", "is not " + std::to_string(kSchemaVersion));
  }
  return root;
}

// In a root, which may have other iterations.
bool is_of_another(const json& root, const OpenedTraining& checkpoint) {
  const auto folder = root.find("folder");
  return folder != root.end() && folder->is_string() &&
         folder->get_ref<const std::string&>() != checkpoint.folder().filename().string();
}

Promise parse_promise(const json& root, const std::string& file) {
  const auto target = root.find("target"), digest = root.find("logical_digest");
  const bool has_states = target != root.end() && target->is_object() &&
                          target->contains("states") && target->at("states").is_array();
  if (!has_states) corrupt(file, "target/states", "is missing");
  Promise promise;
  promise.file = file;
  for (const json& state : target->at("states")) {
    promise.states.push_back(parse_state(state, file));
  }
  if (digest == root.end()) corrupt(file, "logical_digest", "is missing");
  if (digest->is_null()) return promise;
  const bool is_digest =
      digest->is_string() && digest->get_ref<const std::string&>().size() == kDigestDigits;
  if (!is_digest) corrupt(file, "logical_digest", "is not a SHA-256");
  promise.logical_digest = digest->get<std::string>();
  return promise;
}

// Of a tensor with other rows.
uint64_t elements_with(const ckpt::TensorEntry& tensor, uint64_t rows) {
  const uint64_t elements = ckpt::element_count(tensor.shape);
  const bool has_rows = !tensor.shape.empty() && tensor.shape[0] != 0;
  return has_rows ? elements / tensor.shape[0] * rows : elements;
}

bool has_own_shape(std::string_view state) {
  const auto known = std::ranges::find(all_states(), state, &StateSpec::name);
  return known != all_states().end() && known->own_shape;
}

class Counter {
 public:
  explicit Counter(uint64_t vocabulary_rows) : rows_(vocabulary_rows) {}

  void add(const TrainingState& state, const TrainedParam& param) {
    is_of_experts_ = expert_in(param.info.name).has_value();
    weight_ = rows_ != 0 && is_vocabulary(state, param.info.name) ? param.weight.get() : nullptr;
    add("weight", *param.weight);
    if (param.master) add(kMasterState, *param.master);
    for (const StateTensor& each : param.states) add(each.name, *each.value);
  }

  std::vector<StateCount> finish() {
    std::stable_partition(counts_.begin(), counts_.end(),
                          [](const StateCount& count) { return !count.is_of_experts; });
    return std::move(counts_);
  }

 private:
  void add(std::string_view state, const ckpt::TensorEntry& tensor) {
    auto found = std::ranges::find_if(counts_, [&](const StateCount& count) {
      return count.state == state && count.is_of_experts == is_of_experts_;
    });
    if (found == counts_.end()) {
      found = counts_.insert(found, {std::string(state), is_of_experts_});
    }
    const bool gets_rows = weight_ != nullptr && tensor.shape == weight_->shape;
    ++found->tensor_count;
    found->element_count +=
        gets_rows ? elements_with(tensor, rows_) : ckpt::element_count(tensor.shape);
  }

  uint64_t rows_;
  bool is_of_experts_ = false;
  const ckpt::TensorEntry* weight_ = nullptr;  // of a vocabulary that gets other rows
  std::vector<StateCount> counts_;
};

}  // namespace

bool keeps_digest(const Proof& proof) {
  const bool has_all = std::ranges::all_of(proof.not_carried, [](const ckpt::NotCarried& lost) {
    return lost.is_changed || !lost.missing_key;
  });
  return has_all && proof.source.states == proof.target.states;
}

std::string text_of(const Proof& proof) {
  std::vector<std::string> losses;
  for (const ckpt::NotCarried& lost : proof.not_carried) {
    losses.push_back("{" + field("what", quoted(lost.what)) + ", " +
                     field("reason", quoted(lost.reason)) + ", " +
                     field("changed", lost.is_changed) + "}");
  }
  return block(
             "{}",
             {field("schema_version", uint64_t{kSchemaVersion}),
              field("tool", quoted("shardwise " SHARDWISE_VERSION)),
              field("folder", null_or_quoted(proof.folder)), field("source", text_of(proof.source)),
              field("target", text_of(proof.target)), field("masters_proven", proof.masters_proven),
              field("logical_digest", null_or_quoted(proof.logical_digest)),
              field("not_carried", block("[]", losses, 1))},
             0) +
         "\n";
}

std::optional<Promise> promise_of(const OpenedTraining& checkpoint) {
  const std::string name(kMegatronFolders.proof_file);
  for (const std::string& place : {name, "../" + name}) {
    if (place != name && !checkpoint.was_root()) continue;
    const auto kind = checkpoint.source().kind_of_entry(checkpoint.folder() / place);
    if (kind == ckpt::EntryKind::Absent) continue;
    const std::string shown = place == name ? checkpoint.shown_name(name) : name;
    const json root = parse(ckpt::text_beside(checkpoint, place), shown);
    if (is_of_another(root, checkpoint)) continue;
    return parse_promise(root, shown);
  }
  return std::nullopt;
}

// Elements of each state, which a conversion must not lose.
std::vector<std::string> uneven_counts(const TrainingState& state) {
  using Counts = std::vector<std::pair<std::string, uint64_t>>;  // of weights first
  std::map<uint32_t, Counts> optimizers;
  for (const TrainedParam& param : state.params) {
    if (state.chain.empty() || !param.info.requires_grad) continue;
    Counts& counts = optimizers[param.optimizer];
    const auto add = [&](std::string_view name, const ckpt::TensorEntry& tensor) {
      auto found = std::ranges::find(counts, name, &Counts::value_type::first);
      if (found == counts.end()) found = counts.insert(found, {std::string(name), 0});
      found->second += ckpt::element_count(tensor.shape);
    };
    add("weight", *param.weight);
    if (const TensorRef& master = filed_as_master(param)) add(kMasterState, *master);
    for (const StateTensor& each : param.states) {
      if (each.name != kRemainderState && !has_own_shape(each.name)) add(each.name, *each.value);
    }
  }
  std::vector<std::string> uneven;
  for (const auto& [optimizer, counts] : optimizers) {
    const auto differs = [&](const auto& count) { return count.second != counts[0].second; };
    if (std::ranges::none_of(counts, differs)) continue;
    std::string text = "of optimizer " + std::to_string(optimizer);
    const char* separator = " ";
    for (const auto& [name, count] : counts) {
      text += std::exchange(separator, ", ") + ckpt::escaped(name) + " " + std::to_string(count);
    }
    uneven.push_back(std::move(text));
  }
  return uneven;
}

std::vector<StateCount> count_states(const TrainingState& state, uint64_t vocabulary_rows) {
  Counter counter(vocabulary_rows);
  for (const TrainedParam& param : state.params) counter.add(state, param);
  return counter.finish();
}

std::vector<StateCount> count_states(const TrainingState& state) { return count_states(state, 0); }

}  // namespace optim

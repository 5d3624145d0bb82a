// shardwise-proof.json:
//
//   {"schema_version": 1, "tool": "shardwise 0.1.0", "folder": "iter_0000003" or null,
//    "source": {"format": "torch", "sizes": {...}, "states": [STATE, ...]}, "target": {...},
//    "masters_proven": true, "logical_digest": "64 hexadecimal digits" or null,
//    "not_carried": [{"what": ..., "reason": ..., "changed": false}, ...]}
//
//   STATE   {"state": "exp_avg", "experts": false, "tensors": 12, "elements": 3000}
#include "proof/proof_file.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <training/megatron_folders.h>

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

}  // namespace optim

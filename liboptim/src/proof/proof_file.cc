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

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <optim/megatron_folders.h>

namespace optim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
constexpr size_t kDigestDigits = 64;

// Names of a file may be any bytes; JSON holds UTF-8 alone.
std::string json_text(const std::string& text) { return ckpt::escaped(text); }

ordered_json to_json(const ParallelSizes& sizes) {
  return {{"tensor_parallel", sizes.tensor_parallel},
          {"pipeline_parallel", sizes.pipeline_parallel},
          {"virtual_pipeline_parallel", sizes.virtual_pipeline_parallel},
          {"context_parallel", sizes.context_parallel},
          {"data_parallel", sizes.data_parallel},
          {"expert_parallel", sizes.expert_parallel},
          {"expert_tensor_parallel", sizes.expert_tensor_parallel},
          {"world_size", sizes.world()}};
}

ordered_json to_json(const ProofSide& side) {
  ordered_json states = ordered_json::array();
  for (const StateCount& count : side.states) {
    states.push_back({{"state", json_text(count.state)},
                      {"experts", count.is_of_experts},
                      {"tensors", count.tensor_count},
                      {"elements", count.element_count}});
  }
  ordered_json document = {{"format", name(side.format)}, {"sizes", to_json(side.grid.sizes)}};
  const std::string& layout = side.grid.pipeline.pipeline_model_parallel_layout;
  if (!layout.empty()) document["pipeline_layout"] = json_text(layout);
  document["states"] = std::move(states);
  return document;
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
bool is_of_another(const json& root, const ckpt::Checkpoint& checkpoint) {
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

std::string text_of(const Proof& proof) {
  ordered_json losses = ordered_json::array();
  for (const ckpt::NotCarried& lost : proof.not_carried) {
    losses.push_back({{"what", json_text(lost.what)},
                      {"reason", json_text(lost.reason)},
                      {"changed", lost.is_changed}});
  }
  const auto or_null = [](const std::string& value) {
    return value.empty() ? ordered_json(nullptr) : ordered_json(json_text(value));
  };
  ordered_json document;
  document["schema_version"] = kSchemaVersion;
  document["tool"] = "shardwise " SHARDWISE_VERSION;
  document["folder"] = or_null(proof.folder);
  document["source"] = to_json(proof.source);
  document["target"] = to_json(proof.target);
  document["masters_proven"] = proof.masters_proven;
  document["logical_digest"] = or_null(proof.logical_digest);
  document["not_carried"] = std::move(losses);
  return document.dump(1) + "\n";
}

std::optional<Promise> promise_of(const ckpt::Checkpoint& checkpoint) {
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

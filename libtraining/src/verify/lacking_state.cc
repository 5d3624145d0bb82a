#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include <ckpt/files_beside.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/common_state.h"
#include "args/nemo_args.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/whole_states.h"
#include "model/megatron_keys.h"
#include "model/tensor_names.h"
#include "state/lightning_meta.h"
#include "state/not_checked.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

// What ranks wrote of the run: the common state under its key, else the root of each file.
void for_states_of_run(const OpenedTraining& checkpoint,
                       const std::function<void(const std::string& file, const std::string& key,
                                                const Value& root)>& see) {
  if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
    const CommonState* const common = checkpoint.common_state();
    if (common != nullptr) see(common->file, common->key, common->document->tree.root());
    return;
  }
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const Document* const document = checkpoint.document(file.path);
    if (document != nullptr) see(file.path, {}, document->tree.root());
  }
}

// --- the common state, which lies in the store since core 0.19 ---

bool has_states(const OpenedTraining& checkpoint) {
  const auto is_of_state = [](const TensorEntry& tensor) {
    return kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  };
  return std::ranges::any_of(checkpoint.catalog().tensors, is_of_state) ||
         std::ranges::any_of(checkpoint.catalog().objects, is_state_object);
}

// Where metadata.json names a format of common.pt, its absence is a finding of the files.
void find_lacking_common_state(const OpenedTraining& checkpoint, bool has_state,
                               VerifyReport& report) {
  const std::string backend(kMegatronFolders.backend_file);
  if (!has_state ||
      checkpoint.source().kind_of_entry(checkpoint.folder() / backend) != ckpt::EntryKind::File) {
    return;
  }
  const std::string text = ckpt::text_beside(checkpoint, backend);
  const bool names_common = text.find(kMegatronFolders.common_key) != text.npos;
  if (names_common || checkpoint.common_state()) return;
  report.find({.file = checkpoint.shown_name(".metadata"), .key = "common_state"},
              "the common state is missing: args, step counts and parameter groups",
              "copy the iteration again; without it Megatron cannot load the optimizer's state");
}

void find_lacking_last_file(const OpenedTraining& checkpoint, VerifyReport& report) {
  const std::string backend(kMegatronFolders.backend_file);
  if (checkpoint.source().has(checkpoint.folder() / backend)) return;
  report.find(
      {.file = checkpoint.shown_name(backend), .key = {}},
      "is missing, and Megatron writes it last",
      "the save was not completed, or the file was lost; Megatron loads no folder without it");
}

// NeMo loads no folder beside such a mark, and removes both when the next run starts.
void find_unfinished_mark(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (nemo_config(checkpoint).empty()) return;
  std::filesystem::path mark = checkpoint.folder().parent_path();
  mark += "-unfinished";
  if (checkpoint.source().kind_of_entry(mark) != ckpt::EntryKind::File) return;
  report.find({.file = mark.filename(), .key = {}},
              "is beside the folder: NeMo did not finish saving or removing it",
              "NeMo resumes from another; without the mark it would load what is there");
}

// Of a common state that Megatron-LM's training wrote, or Megatron Bridge's, which has no args:
// NeMo's has no checkpoint_version.
std::vector<std::string> lacking_keys(const Value& root, bool has_state, bool is_of_bridge) {
  std::vector<std::string> lacking;
  if (!root.is(Kind::Dict) || (!root.find("checkpoint_version") && !root.find("args"))) return {};
  for (const char* key : {"args", "checkpoint_version", "iteration"}) {
    const bool is_written = !is_of_bridge || std::string_view(key) != "args";
    if (is_written && !root.find(key)) lacking.emplace_back(key);
  }
  if (has_state && !root.find("opt_param_scheduler")) lacking.emplace_back("opt_param_scheduler");
  return lacking;
}

// Why the configuration of Megatron Bridge or NeMo gives no args; nullopt: it is neither's, or
// does.
std::optional<std::string> why_without_args(const OpenedTraining& checkpoint) {
  if (checkpoint.args().are_there()) return std::nullopt;
  const std::string config = bridge_config(checkpoint), nemo = nemo_config(checkpoint);
  if (config.empty() && nemo.empty()) return std::nullopt;
  try {
    const CommonState* const common = checkpoint.common_state();
    if (common == nullptr) return "the common state is missing";
    if (!nemo.empty()) {
      CommonState read = *common;
      translate_nemo(nemo, checkpoint.catalog(), read);
    }
    args_of_bridge(config, common->document->tree.root(), checkpoint.catalog());
    return "Megatron Bridge writes no args";
  } catch (const Error& error) {
    return error.what();
  }
}

void find_lacking_keys(const OpenedTraining& checkpoint, bool has_state, VerifyReport& report) {
  const auto why = why_without_args(checkpoint);
  const bool is_bridge = why.has_value();
  if (why) report.not_checked.push_back({"args against the model", *why});
  for_states_of_run(checkpoint, [&](const std::string& file, const std::string&,
                                    const Value& root) {
    for (const std::string& key : lacking_keys(root, has_state, is_bridge)) {
      report.find({.file = checkpoint.shown_name(file), .key = "/" + key},
                  "is missing, and Megatron writes it into every checkpoint",
                  "the file was changed; training would go on with other settings, or not at all");
    }
  });
}

// --- random states ---

// The product of the sizes in rng_state/shard_0.1_1.2: how many there are. nullopt: another key.
std::optional<uint64_t> stated_shards(const std::string& key) {
  constexpr std::string_view kPrefix = "rng_state/shard_";
  if (!key.starts_with(kPrefix)) return std::nullopt;
  const size_t sizes = key.find('_', kPrefix.size());
  if (sizes == key.npos) return std::nullopt;
  uint64_t count = 1;
  for (size_t at = sizes + 1; at < key.size();) {
    const size_t end = std::min(key.find('.', at), key.size());
    const std::string digits = key.substr(at, end - at);
    const bool is_size = !digits.empty() && digits.size() < 7 &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
    if (!is_size) return std::nullopt;
    count *= std::stoull(digits);
    if (count > uint64_t{1} << 32) return std::nullopt;
    at = end + 1;
  }
  return count;
}

void find_lacking_shards(const OpenedTraining& checkpoint, VerifyReport& report) {
  uint64_t stated = 0, found = 0;
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    const auto count = stated_shards(object.key);
    if (!count) continue;
    stated = std::max(stated, *count);
    ++found;
  }
  if (found >= stated) return;
  report.find({.file = checkpoint.shown_name(".metadata"), .key = "rng_state"},
              std::to_string(stated - found) + " of " + std::to_string(stated) +
                  " random states are missing",
              "ranks without one would draw the random numbers of another rank, or none");
}

void find_lacking_rng_of_files(const OpenedTraining& checkpoint, VerifyReport& report) {
  std::vector<std::string> without;
  bool has_any = false;
  const auto see = [&](const std::string& file, const std::string&, const Value& root) {
    if (!root.is(Kind::Dict) || !root.find("args")) return;  // not of the model's file of a rank
    if (root.find("rng_state")) {
      has_any = true;
    } else {
      without.push_back(file);
    }
  };
  for_states_of_run(checkpoint, see);
  if (!has_any) return;  // --no-save-rng
  for (const std::string& path : without) {
    report.find({.file = checkpoint.shown_name(path), .key = "/rng_state"},
                "is missing, although other rank files have it",
                "the rank would draw the random numbers of another one, or none");
  }
}

// --- moments ---

// What no parameter of an optimizer has.
struct LackedByAll {
  std::string first, rule;  // of its parameters
};

// Optimizers without any state, although steps were taken.
std::map<uint32_t, LackedByAll> find_stateless_optimizers(const FiledState& state,
                                                          const StatelessParams& stateless) {
  std::map<uint32_t, LackedByAll> found;
  for (const uint32_t i : stateless.unexplained) {
    const TrainedParam& param = state.params[i];
    if (has_stepped(state, param.optimizer) != Stepped::Yes) continue;
    found.try_emplace(param.optimizer, param.info.name);
  }
  for (const TrainedParam& param : state.params) {
    if (!param.states.empty()) found.erase(param.optimizer);
  }
  if (found.empty()) return found;
  for (const ParamGroup& group : groups_of(state.args(), state.grid.sizes, state.params)) {
    const auto lacking = found.find(group.optimizer_index);
    if (lacking != found.end()) lacking->second.rule = group.updated_by;
  }
  return found;
}

void find_lacking_moments(const FiledState& state, VerifyReport& report) {
  const StatelessParams stateless = find_stateless(state);
  const auto of_all = find_stateless_optimizers(state, stateless);
  for (const auto& [optimizer, lacking] : of_all) {
    for (const std::string_view name : states_kept_by(lacking.rule)) {
      report.find(
          {.file = {}, .key = state_key(name, lacking.first)},
          "no parameter of this optimizer has it, and " + lacking.rule + " keeps it of each",
          "the moments were lost; training would go on as from a fresh optimizer");
    }
  }
  LeftOut unexplained("parameter");
  for (const uint32_t i : stateless.unexplained) {
    const TrainedParam& param = state.params[i];
    if (of_all.contains(param.optimizer)) continue;
    unexplained.add(param.info.name, why_unexplained(state, param));
  }
  unexplained.put_into(report.not_proven);
  if (stateless.never_stepped.empty()) return;
  report.find({.file = {}, .key = state.params[stateless.never_stepped[0]].info.name},
              counted(stateless.never_stepped.size(), "parameter") +
                  ", this one among them, without optimizer state",
              "their optimizer has taken no step", ckpt::Severity::Note);
}

void note_lacking_meta(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (!lacks_lightning_meta(checkpoint)) return;
  report.find({.file = checkpoint.shown_name(kLightningMeta), .key = {}},
              "is missing: epoch, step and schedulers, without which Lightning, whose keys these "
              "are, cannot resume",
              "copy it from where the checkpoint was saved", ckpt::Severity::Note);
}

}  // namespace

void find_lacking(const OpenedTraining& checkpoint, const FiledState* state, VerifyReport& report) {
  if (!is_megatron(checkpoint)) return note_lacking_meta(checkpoint, report);
  unless_damaged([&] {
    const bool has_state = has_states(checkpoint);
    find_lacking_keys(checkpoint, has_state, report);
    if (checkpoint.catalog().format == ckpt::Format::TorchDist) {
      find_lacking_last_file(checkpoint, report);
      find_unfinished_mark(checkpoint, report);
      find_lacking_common_state(checkpoint, has_state, report);
      find_lacking_shards(checkpoint, report);
    } else {
      find_lacking_rng_of_files(checkpoint, report);
    }
    if (state != nullptr && !state->chain.empty()) find_lacking_moments(*state, report);
  });
}

// The iteration that a checkpoint's state was saved at, against the one that its folder names.
std::vector<ckpt::Finding> find_other_iterations(const OpenedTraining& checkpoint) {
  std::vector<ckpt::Finding> findings;
  const auto named = checkpoint.catalog().iteration;
  if (!named || !is_megatron(checkpoint)) return findings;
  for_states_of_run(
      checkpoint, [&](const std::string& file, const std::string& key, const Value& root) {
        const auto saved = root.is(Kind::Dict) ? root.find("iteration") : std::nullopt;
        if (!saved || !saved->is(Kind::Int) || saved->as_int() == *named) return;
        findings.push_back(
            {ckpt::CheckKind::Meaning, ckpt::Severity::Damage,
             ckpt::Where{checkpoint.shown_name(file), std::nullopt, key + "/iteration"},
             "the state is from iteration " + std::to_string(saved->as_int()) +
                 ", but the folder's name says " + std::to_string(*named),
             "Megatron continues from the iteration in the state; the folder may have been "
             "renamed, or copied into"});
      });
  return findings;
}

}  // namespace optim

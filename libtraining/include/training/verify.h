#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/findings.h>
#include <ckpt/verify.h>
#include <training/export.h>
#include <training/opened_training.h>

namespace optim {

struct NotChecked {
  std::string what;
  std::string reason;
};
using NotProven = NotChecked;

struct VerifyReport {
  ckpt::Format format = ckpt::Format::Torch;
  std::optional<int64_t> iteration;
  ckpt::Findings findings;
  uint64_t master_count = 0;           // chunks of masters that were compared with their weights
  uint64_t matching_master_count = 0;  // of these, those that round to them
  uint64_t state_count = 0;            // chunks of optimizer state whose values were looked at
  uint64_t sound_state_count = 0;      // of these, those that hold nothing but what they may
  // The same of tensors that are no optimizer state, and of what --allow-nonfinite let pass.
  uint64_t tensor_count = 0, sound_tensor_count = 0;
  uint64_t allowed_value_count = 0, allowed_tensor_count = 0;
  uint64_t group_count = 0;  // parameter groups
  // Of shardwise-proof.json, if there is one: the states whose elements it counts, those of which
  // the folder has as many, and whether it has the logical hash.
  uint64_t promised_state_count = 0, kept_state_count = 0;
  bool has_promised_digest = false;
  std::vector<NotChecked> not_checked;  // what nothing was looked at for, and why
  // What was looked at, and may be right or not: what it must be cannot be told from the files.
  std::vector<NotProven> not_proven;

  // Adds what was found of the meaning.
  void find(ckpt::Where where, std::string problem, std::string hint = {},
            ckpt::Severity severity = ckpt::Severity::Damage) {
    findings.findings.push_back({ckpt::CheckKind::Meaning, severity, std::move(where),
                                 std::move(problem), std::move(hint)});
  }
};

struct VerifyOptions : ckpt::VerifyOptions {
  std::optional<int64_t> iteration;  // of a root
  ckpt::Limits limits;               // of reading
  // Keys or globs, as KeySelection takes them: tensors that may hold NaN and infinities.
  std::vector<std::string> allow_nonfinite;
};

// ckpt::verify(), and what optimizer state must be like: each master rounds to its weight, second
// moments are not negative, no element of a model's or an optimizer's tensors is NaN or infinite
// (docs/verify.md says which are masks, or something else), one step count per group, each
// parameter owned once, all rank files there, no group that ranks have otherwise, no two groups
// that Megatron could take for each other. What it does not understand, it names in not_checked and
// not_proven, and never calls that damage. A file that context-parallel ranks have overwritten is a
// finding even where the checkpoint cannot be opened for it. Values are looked at while their bytes
// pass by for the checksums: nothing is read twice. Of several processes each looks at the values
// in its pieces of files, and reads the weights of its masters, wherever they are; groups, and who
// owns which parameter, are the first process's. Throws what Checkpoint::open() throws; a file that
// the checkpoint names and that is missing is Corrupt.
TRAINING_EXPORT VerifyReport verify(const std::filesystem::path& path,
                                    const VerifyOptions& options);
// The same for an opened checkpoint. options.iteration and options.limits do not count.
TRAINING_EXPORT VerifyReport verify(const OpenedTraining& checkpoint, const VerifyOptions& options);

// Whether all files of a copy are those of its original, of roots those of one iteration:
// ckpt::compare_copies(). Reads both once. A copy that cannot be opened is compared, too. Throws
// what open_checkpoint() throws of the original.
ckpt::CopyReport compare_copies(const std::filesystem::path& copy,
                                const std::filesystem::path& original,
                                const VerifyOptions& options);

}  // namespace optim

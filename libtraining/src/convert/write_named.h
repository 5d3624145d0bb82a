#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include <ckpt/target.h>
#include <ckpt/write_target.h>
#include <training/convert.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "convert/checks.h"
#include "issues/issue.h"

// A target that was decided, into its place.
namespace optim {

// Files of a torch_dist source that a result shares: `reshard --link`.
using Links = std::vector<ckpt::LinkedFile>;

// Throws Unsupported where files hold what the sizes change. `vocabulary_rows`: of the target.
void require_linkable(const OpenedTraining& source, const FiledState& state,
                      const LayerWiseTargetSpec& spec, uint64_t vocabulary_rows);

// Throws Unsupported where ranks of this grid have rows of gate and up in other places of the
// files.
void require_rows_in_place(const OpenedTraining& source, const FiledState& state,
                           const RunGrid& grid);

// Random states belong to pipeline stages and tensor parallel ranks.
bool has_same_stages(const RunGrid& a, const RunGrid& b);

// Links all files of the source that the target does not write itself, and takes out of the target
// those that it has as they are. Where random states stay, .metadata does, too.
Links link_what_stays(const OpenedTraining& source, ckpt::Target& target, bool same_places);

// Where a conversion comes from and goes to, as the caller named them; what is linked; and what
// must not throw before anything is published.
struct Job {
  const OpenedTraining& source;
  const std::filesystem::path& source_path;
  const std::filesystem::path& destination;
  bool link = false;  // what can stay as it is
  std::vector<RepairFinding> repairs = {};
  std::shared_ptr<const ckpt::PayloadSource> repaired = {};  // null: all comes from the source
  Links links = {};
  std::vector<ckpt::TargetFile> files = {};  // of the target's folder, too
  std::function<void()> before_publishing = {};
  std::function<void(ckpt::Target&)> complete = {};
  CheckWritten check_result = {};

  const ckpt::PayloadSource& payloads() const { return repaired ? *repaired : source; }
};

// Throws as ckpt::write_target(); under --strict Unsupported where iterations differ.
ConvertReport write(const Job& job, ckpt::Target target, const ConvertOptions& options);

// Masters are compared with weights as they pass: not where nothing passes; what numbers its
// parameters must be proven.
bool may_be_proven(const FiledState& state, const Job& job);

// As write(). Numbered masters are proven to belong to their names; Corrupt where one does not.
ConvertReport write_named(const FiledState& state, Job job, ckpt::Target target,
                          const ConvertOptions& options);

// A training state on its way to the target that options ask for. `repaired.payloads`: what its
// chunks lie in; null: the source's files.
ConvertReport convert_state(Job job, const ConvertOptions& options, RepairedState repaired);

// A conversion of what is not a checkpoint of Megatron's: a plain state dict. Throws Unsupported
// for options that need one.
ConvertReport convert_plain(Job job, const ConvertOptions& options);
// The same with options.hugging_face: docs/huggingface.md.
ConvertReport export_plain(Job job, const ConvertOptions& options);
// The same of a reshard: files of FSDP's ranks, for others; all else is refused.
ConvertReport reshard_plain(const Job& job, const ConvertOptions& options);

}  // namespace optim

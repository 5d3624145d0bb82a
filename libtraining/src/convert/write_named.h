#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include <ckpt/target.h>
#include <training/convert.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

#include "convert/check_result.h"
#include "convert/links.h"

// A target that was decided, into its place.
namespace optim {

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

}  // namespace optim

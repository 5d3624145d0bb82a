#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/target.h>

namespace ckpt {

struct ConvertOptions {
  std::optional<Format> format;      // default: the source's
  std::optional<int64_t> iteration;  // of a checkpoint root; default: what the tracker names
  bool strict = false;               // refuse when something cannot be carried
  bool force = false;                // replace the destination
  bool dry_run = false;              // plan, write nothing
  ExecuteOptions execute;
};

struct ConvertReport {
  Format source_format = Format::Torch, target_format = Format::Torch;
  Plan plan;           // files, bytes and where each payload comes from
  ExecuteStats stats;  // zero after a dry run
  std::vector<NotCarried> not_carried;
  std::vector<std::string> warnings;
};

// Plain state dicts: a torch.save file to a DCP folder or back. Throws what Checkpoint::open,
// make_target and Staging::create throw; Unsupported under options.strict where something is not
// carried.
CKPT_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                  const std::filesystem::path& destination,
                                  const ConvertOptions& options);

// The last part of every conversion: plan, stage, execute, commit. `source_path`: what the
// destination must not lie in. source_format of the report is left to the caller.
CKPT_EXPORT ConvertReport write_target(Target target, const PayloadSource& source,
                                       const std::filesystem::path& source_path,
                                       const std::filesystem::path& destination,
                                       const ConvertOptions& options);

}  // namespace ckpt

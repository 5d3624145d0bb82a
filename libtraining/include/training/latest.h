#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/limits.h>
#include <ckpt/root.h>
#include <training/export.h>

namespace optim {

struct SkippedIteration {
  ckpt::IterationFolder folder;
  std::string reason;               // the first thing that is wrong with it
  bool is_found_by_verify = false;  // verify() of the folder lists it, and what else it finds
};

struct LatestReport {
  std::optional<ckpt::IterationFolder> latest;  // the newest that is complete
  std::vector<SkippedIteration> skipped;        // newer ones, the newest first
  std::vector<std::string> elsewhere = {};      // folders not looked at: links out of the root
};

// The newest iteration of a checkpoint root that is complete: a quick verify() finds no damage, and
// what Megatron writes last is there. Trackers are not asked: a crash leaves them behind. Throws
// NotFound where there is no such folder.
TRAINING_EXPORT LatestReport find_latest(const std::filesystem::path& root,
                                         const ckpt::Limits& limits = {});

}  // namespace optim

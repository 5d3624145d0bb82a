#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/limits.h>
#include <ckpt/root.h>

namespace optim {

struct SkippedIteration {
  ckpt::IterationFolder folder;
  std::string reason;               // the first thing that is wrong with it
  bool is_found_by_verify = false;  // verify() of the folder lists it, and what else it finds
  bool is_unsupported = false;      // not checked: nothing here reads it as a whole
};

struct LatestReport {
  std::optional<ckpt::IterationFolder> latest;  // the newest that is complete; can be opened
  std::vector<SkippedIteration> skipped;        // newer ones, the newest first
  std::vector<std::string> elsewhere = {};      // folders not looked at: links out of the root
};

// The newest iteration of a checkpoint root that is complete: a quick verify() finds no damage, and
// what Megatron writes last is there. Of the folders that trace_lineage() finds Megatron's count,
// else those of the one program that named them. Trackers are not asked: a crash leaves them
// behind. Throws NotFound where there is no such folder, Unsupported where two programs named them.
LatestReport find_latest(const std::filesystem::path& root, const ckpt::Limits& limits = {});

struct FinishedIterations {
  std::vector<ckpt::IterationFolder> finished;  // can be opened
  std::vector<SkippedIteration> skipped;
};

// Of the iterations that `wanted` accepts, as find_latest() looks at them, those that are complete
// and not being written, the oldest first: of a Megatron root with a tracker, none behind the one
// that it names, as it is written last. Throws as find_latest() does.
FinishedIterations find_finished(const std::filesystem::path& root, const ckpt::Limits& limits,
                                 const std::function<bool(const ckpt::IterationFolder&)>& wanted);

// The newest of them that are complete, so many at most, the newest first. Throws as find_latest().
std::vector<ckpt::IterationFolder> find_complete(const std::filesystem::path& root,
                                                 size_t count_max, const ckpt::Limits& limits = {});

}  // namespace optim

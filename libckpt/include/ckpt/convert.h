#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/cast.h>
#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <ckpt/plain_target.h>
#include <ckpt/plan.h>
#include <ckpt/staging.h>

namespace ckpt {

struct FolderConvention;

struct ConvertOptions {
  std::optional<Format> format;      // default: the source's
  std::optional<int64_t> iteration;  // of a checkpoint root; default: what the tracker names
  Limits limits;                     // of reading the source
  const FolderConvention* convention = nullptr;  // of the source's folders
  bool strict = false;                           // refuse when something cannot be carried
  bool force = false;                            // replace the destination
  bool dry_run = false;                          // plan, write nothing
  // Before anything is published: read back what was written, from the device, open it with the
  // reader, run the checks of verify(), and compare it with the source by value. Without it the
  // result is opened, and what it holds is compared by name, type and shape.
  bool verify = false;
  bool resume = false;  // continue what an interrupted attempt left; see StagingOptions
  // With a world_size above 1 this process writes its share of the bytes; the last one publishes.
  Share share;
  bool finish = false;     // write no payload: publish what the processes of a share have left
  bool integrity = false;  // torch_dist: with integrity.json, the hash of each file
  std::optional<int> zstd_level;  // torch_dist: entries are compressed, 1 to 19
  KeyRules keys;                  // plain state dicts, and to safetensors
  std::vector<TypeRule> types;    // of tensors that are to have another one
  ExecuteOptions execute;
};

// Whether safetensors go into a folder: where the destination's name does not end in
// ".safetensors".
bool is_safetensors_folder(const std::filesystem::path& destination);

enum class Outcome : uint8_t {
  Planned,      // a dry run
  PartWritten,  // this process's share; another process publishes
  Published,
  AlreadyPublished,  // this share is in the destination, which the processes of it have made before
};

// What a result holds, as listings count it.
struct Carried {
  uint64_t tensor_count = 0, object_count = 0;
};
Carried count_carried(const Checkpoint& result);

struct ConvertReport {
  Outcome outcome = Outcome::Planned;
  Format source_format = Format::Torch, target_format = Format::Torch;
  Plan plan;                // files, bytes and where each payload comes from
  ExecuteStats stats;       // zero after a dry run
  uint64_t kept_bytes = 0;  // under options.resume: found finished and sound
  uint64_t verified_bytes = 0;
  uint64_t peak_memory_bytes = 0;  // of a dry run: about what the process would hold; 0: unknown
  std::vector<NotCarried> not_carried;
  uint64_t left_out_count = 0;     // as Target's
  std::optional<Carried> carried;  // of what this call published, counted before
  std::vector<std::string> warnings;
  std::vector<std::string> casts;  // as Target's
};

// Plain state dicts: a torch.save file, a DCP folder or safetensors as any of them. Throws what
// Checkpoint::open, make_target and Staging::create throw; Unsupported under options.strict where
// something is not carried.
CKPT_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                  const std::filesystem::path& destination,
                                  const ConvertOptions& options);

}  // namespace ckpt

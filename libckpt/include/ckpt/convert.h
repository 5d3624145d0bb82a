#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/diff.h>
#include <ckpt/error.h>
#include <ckpt/execute.h>
#include <ckpt/staging.h>
#include <ckpt/target.h>
#include <ckpt/verify.h>

namespace ckpt {

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
  ExecuteOptions execute;
};

// Whether safetensors go into a folder: where the destination's name does not end in
// ".safetensors".
CKPT_EXPORT bool is_safetensors_folder(const std::filesystem::path& destination);

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
CKPT_EXPORT Carried count_carried(const Checkpoint& result);

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
};

// Plain state dicts: a torch.save file, a DCP folder or safetensors as any of them. Throws what
// Checkpoint::open, make_target and Staging::create throw; Unsupported under options.strict where
// something is not carried.
CKPT_EXPORT ConvertReport convert(const std::filesystem::path& source,
                                  const std::filesystem::path& destination,
                                  const ConvertOptions& options);

// A file of the destination that is a file of the source: its blocks are shared where the file
// system can do that, else it is the same file under a second name.
struct LinkedFile {
  std::filesystem::path source;
  std::string path;  // relative to the destination
};

struct ConversionSource {
  const PayloadSource& payloads;
  std::filesystem::path path;  // the destination must not lie in it
  // Where all payload comes from its files. Without it options.resume, share and finish are refused
  // (Unsupported): nobody could tell whether two attempts write the same.
  const Checkpoint* checkpoint = nullptr;
  std::vector<LinkedFile> links = {};  // published with the target's files, in this order
  // Called, if set, when this process has written its payload; if it throws, nothing is published.
  std::function<void()> before_publishing = {};
  // Called, if set, by the process that publishes, with the complete target where it was written;
  // if it throws, nothing is published. Counts what it has opened.
  std::function<Carried(const std::filesystem::path& written)> check_result = {};
};

// How a result is compared with its source.
struct ResultCheck {
  std::span<const NotCarried> not_carried;  // by their missing_key what the result may lack
  bool values = false;                      // of tensors, too: else their names, types and shapes
  ExecuteOptions execute;
};

// Conservation: what was written holds each tensor and object of the source, under the names of the
// two inventories, and nothing else, but for what is said not to be carried. Objects are compared
// by value, tensors where check.values says so: by the checksums that both sides state for the same
// bytes, or byte by byte. Throws std::logic_error that names what differs: a fault of ours.
CKPT_EXPORT void require_same_content(const DiffSide& source, const DiffSide& written,
                                      const ResultCheck& check);

// The same for what make_target(source, spec) made of a plain state dict. Throws Unsupported where
// the reader does not take what was written.
CKPT_EXPORT Carried check_plain_result(const Checkpoint& source, const TargetSpec& spec,
                                       const std::filesystem::path& written,
                                       const ResultCheck& check);

// Opens what was written, before it is published. Throws Unsupported where the reader refuses it,
// so that nobody else is left with it; IoFailure as it is.
CKPT_EXPORT Checkpoint open_result(const std::filesystem::path& written,
                                   const OpenOptions& options);
// That refusal, of what a later reader has thrown.
[[noreturn]] CKPT_EXPORT void refuse_unreadable(const Error& error);

// Throws Corrupt with the first damage that verify() found in what was written.
CKPT_EXPORT void refuse_damage(const Findings& findings);

// The last part of every conversion: plan, stage, execute, commit. source_format of the report is
// left to the caller. Throws Corrupt where the source changes meanwhile, IoFailure where
// options.verify reads back something else than was written.
CKPT_EXPORT ConvertReport write_target(Target target, const ConversionSource& source,
                                       const std::filesystem::path& destination,
                                       const ConvertOptions& options);

}  // namespace ckpt

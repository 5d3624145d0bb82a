#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/convert.h>
#include <ckpt/diff.h>
#include <ckpt/findings.h>

namespace ckpt {

// For libraries that make targets of their own, as libtraining does: the last part of a conversion,
// and the proofs of its result. Programs call convert().

// A file of the destination that is a file of the source: its blocks are shared where the file
// system can do that, else it is the same file under a second name.
struct LinkedFile {
  std::filesystem::path source;
  std::string path;  // relative to the destination
};

// A complete target before it is published: a path, and through what it is read.
struct WrittenResult {
  WrittenResult(std::filesystem::path at, std::shared_ptr<const Folder> by = nullptr)
      : path(std::move(at)), source(std::move(by)) {}
  std::filesystem::path path;
  std::shared_ptr<const Folder> source;  // null: as the path says
};

struct ConversionSource {
  const PayloadSource& payloads;
  std::filesystem::path path;  // the destination must not lie in it
  // Whose files are read: Corrupt where one changes meanwhile, or the destination is one of them.
  const Checkpoint* checkpoint = nullptr;
  std::vector<LinkedFile> links = {};  // published with the target's files, in this order
  // Called, if set, when this process has written its payload; if it throws, nothing is published.
  std::function<void()> before_publishing = {};
  // Called, if set, by the process that publishes, when all payload is written: what only one
  // process finds out, in the target's files without archives. Their lengths must stay as they are.
  std::function<void(Target& target)> complete = {};
  // Called, if set, by the process that publishes, with the complete target where it was written;
  // if it throws, nothing is published. Counts what it has opened.
  std::function<Carried(const WrittenResult& written)> check_result = {};
  // Some payload lies in no file. Then, and without a checkpoint, options.resume, share and finish
  // are refused (Unsupported): nobody could tell whether two attempts write the same.
  bool is_made_up = false;
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
void require_same_content(const DiffSide& source, const DiffSide& written,
                          const ResultCheck& check);

// The same for what make_target(source, spec) made of a plain state dict. Throws Unsupported where
// the reader does not take what was written.
Carried check_plain_result(const Checkpoint& source, const TargetSpec& spec,
                           const WrittenResult& written, const ResultCheck& check);

// Opens what was written, before it is published. Throws Unsupported where the reader refuses it,
// so that nobody else is left with it; IoFailure as it is.
Checkpoint open_result(const WrittenResult& written, OpenOptions options);
// That refusal, of what a later reader has thrown.
[[noreturn]] void refuse_unreadable(const Error& error);

// Throws Corrupt with the first damage that verify() found in what was written.
void refuse_damage(const Findings& findings);

// The last part of every conversion: plan, stage, execute, commit. source_format of the report is
// left to the caller. Throws Corrupt where the source changes meanwhile, IoFailure where
// options.verify reads back something else than was written.
ConvertReport write_target(Target target, const ConversionSource& source,
                           const std::filesystem::path& destination, const ConvertOptions& options);

}  // namespace ckpt

// Where two checkpoints lie whose files are to be the same.
#include <optional>

#include <ckpt/error.h>
#include <training/verify.h>

namespace optim {
namespace {

namespace fs = std::filesystem;
using ckpt::ErrorCode;

OpenedTraining open(const fs::path& path, const VerifyOptions& options) {
  ckpt::Limits limits = options.limits;
  limits.allow_missing_data = true;  // what is missing is told file by file
  return open_checkpoint(path, {.iteration = options.iteration, .limits = limits});
}

ckpt::CopySide side_of(const OpenedTraining& checkpoint) {
  ckpt::CopySide side{checkpoint.folder(), {}, checkpoint.limits().follow_links};
  if (!checkpoint.was_file()) return side;
  const auto& files = checkpoint.catalog().files;
  if (files.size() != 1) {
    throw ckpt::Error(ErrorCode::InvalidArgument, {.file = checkpoint.shown_path(), .key = {}},
                      "names several files; --against compares folders, or one file with another",
                      "give the folder that holds it");
  }
  side.file = files.front().path;
  return side;
}

// Of a copy that cannot be opened: the folder that the original is in, or would be.
ckpt::CopySide side_of_what_is_left(const fs::path& path, const OpenedTraining& original,
                                    const VerifyOptions& options) {
  const fs::path below = path / original.folder().filename();
  const bool is_root =
      original.catalog().iteration && ckpt::kind_at(below) == ckpt::EntryKind::Folder;
  return {is_root ? below : path, {}, options.limits.follow_links};
}

}  // namespace

ckpt::CopyReport compare_copies(const fs::path& copy, const fs::path& original,
                                const VerifyOptions& options) {
  const OpenedTraining whole = open(original, options);
  std::optional<OpenedTraining> opened;
  try {
    opened = open(copy, options);
  } catch (const ckpt::Error& error) {
    const bool is_damaged =
        error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::NotFound;
    if (!is_damaged || ckpt::kind_at(copy) != ckpt::EntryKind::Folder || whole.was_file()) throw;
  }
  if (!opened) {
    return ckpt::compare_copies(side_of_what_is_left(copy, whole, options), side_of(whole),
                                options.execution);
  }
  const auto a = opened->catalog().iteration, b = whole.catalog().iteration;
  if (a && b && *a != *b) {
    throw ckpt::Error(
        ErrorCode::InvalidArgument, {.file = whole.shown_path(), .key = {}},
        "is iteration " + std::to_string(*b) + ", the copy is iteration " + std::to_string(*a),
        "--iteration N takes one of both");
  }
  return ckpt::compare_copies(side_of(*opened), side_of(whole), options.execution);
}

}  // namespace optim

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/export.h>
#include <ckpt/random_access.h>

namespace ckpt {

// What a name stands for.
enum class EntryKind : uint8_t { Absent, File, Folder, Link, Other };

// Where symbolic links may lead.
enum class Links : uint8_t { StayInside, MayLeadOut };

// Where the bytes of checkpoints come from: names of folders and files, and files that can be read.
// The local disk is one (local_folder()); OpenOptions::source takes another. Paths are those that
// Checkpoint::open() is given, and what lies below them. Safe to use from many threads.
class CKPT_EXPORT Folder {
 public:
  struct Entry {
    EntryKind kind = EntryKind::Absent;
    FileState state = {};  // of what is not absent
  };

  virtual ~Folder() = default;
  // Names in a folder, without "." and "..", sorted by byte value. Throws NotFound, IoFailure.
  virtual std::vector<std::string> list(const std::filesystem::path& folder) const = 0;
  // What is there, behind a link where it is one: never Link. Throws IoFailure.
  virtual Entry stat(const std::filesystem::path& path) const = 0;
  // The same of the name itself: a link is a link.
  virtual Entry stat_entry(const std::filesystem::path& path) const { return stat(path); }

  struct Name {
    std::string path;        // below the folder
    std::string shown = {};  // what errors call it; default: the path
    Links links = Links::StayInside;
  };
  // A regular file below a folder. Throws NotFound, IoFailure; Corrupt for a name that leads out of
  // the folder, and for a link that does and may not.
  virtual std::unique_ptr<OpenedFile> open(const std::filesystem::path& folder,
                                           const Name& name) const = 0;
  // Whether a file or folder below `folder` is reached without leaving it. Throws as open().
  virtual void check_inside(const std::filesystem::path& folder, const std::string& name) const = 0;
  // Absolute, without links and "..", as far as the names mean that.
  virtual std::filesystem::path resolved(const std::filesystem::path& path) const {
    return path.lexically_normal();
  }

  EntryKind kind_of(const std::filesystem::path& path) const { return stat(path).kind; }
  EntryKind kind_of_entry(const std::filesystem::path& path) const { return stat_entry(path).kind; }
  bool has(const std::filesystem::path& path) const { return kind_of(path) != EntryKind::Absent; }
};

// The local disk. One object for one checkpoint: it remembers which of its files have left the page
// cache after they were read once.
CKPT_EXPORT std::shared_ptr<const Folder> local_folder();

}  // namespace ckpt

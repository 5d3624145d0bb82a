#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/export.h>

namespace ckpt {

// What tells one state of a file from another, the same on every machine that sees it.
struct FileState {
  uint64_t inode = 0;
  uint64_t count_bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  bool operator==(const FileState&) const = default;
};

// Bytes that can be read at any place. Safe to read from many threads.
class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual uint64_t size_bytes() const = 0;
  // Fills `out` from `offset_bytes`. Throws Error(Corrupt) where the bytes end early,
  // Error(IoFailure) where the system fails.
  virtual void read_at(uint64_t offset_bytes, std::span<std::byte> out) const = 0;
  virtual const std::string& file_name() const = 0;  // for errors
};

// A file of a Folder.
class OpenedFile : public RandomAccess {
 public:
  virtual const FileState& state() const = 0;  // when it was opened
  // As read_at(), for who passes over the bytes once: they need not be kept for the next reader.
  virtual void read_once(uint64_t offset_bytes, std::span<std::byte> out) const {
    read_at(offset_bytes, out);
  }
};

// What a name stands for.
enum class EntryKind : uint8_t { Absent, File, Folder, Link, Other };

// Where symbolic links may lead.
enum class Links : uint8_t { StayInside, MayLeadOut };

// Where the bytes of checkpoints come from: names of folders and files, and files that can be read.
// The local disk is one, remote_folder() another; OpenOptions::source takes any. Paths are those
// that Checkpoint::open() is given, and what lies below them. Safe to use from many threads.
class Folder {
 public:
  struct Entry {
    EntryKind kind = EntryKind::Absent;
    FileState state = {};  // of what is not absent
  };

  virtual ~Folder() = default;
  // Names in a folder, without "." and "..", sorted by byte value. Throws NotFound, IoFailure.
  virtual std::vector<std::string> list(const std::filesystem::path& folder) const = 0;
  // False where list() cannot say: of a web server's folder, where names are known from files
  // alone.
  virtual bool can_list(const std::filesystem::path&) const { return true; }
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
std::shared_ptr<const Folder> local_folder();

// Object stores (s3://bucket/prefix) and web servers (https://host/path, by ranges; the address of
// a folder ends with a slash). `variables` is the environment, which says as whom, as the AWS tools
// take it: it is asked when the first address is read. An object that changes after it was first
// seen is IoFailure. The connections and up to 128 MiB of what was read live as long as the folder.
CKPT_EXPORT std::shared_ptr<const Folder> remote_folder(
    std::function<std::optional<std::string>(const char* name)> variables);

// "s3" of s3://bucket (RFC 3986, 3.1); empty where a path is not an address.
std::string_view scheme_of(std::string_view path);
// Paths that begin with SCHEME:// are read from what `make` gives from now on. To be called before
// the first path is read; libraries add none by themselves.
using MakeFolder = std::function<std::shared_ptr<const Folder>()>;
CKPT_EXPORT void add_source(const std::string& scheme, MakeFolder make);
bool has_source(std::string_view scheme);
// Where a path is: what was added for its scheme, else the local disk.
std::shared_ptr<const Folder> source_of(const std::filesystem::path& path);
// What is there; Absent also where that cannot be found out.
EntryKind kind_at(const std::filesystem::path& path);

}  // namespace ckpt

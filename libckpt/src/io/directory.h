#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace ckpt {

// True for a path that stays below the folder that it is taken from, whatever links are there:
// relative, not empty, no "..", no NUL.
bool is_safe_relative(std::string_view path);

// An opened folder. Files are opened below it and never outside: a link or a ".." that leads out of
// it is refused (Corrupt).
class Directory {
 public:
  static Directory open(const std::filesystem::path& path);  // throws NotFound, IoFailure

  const std::filesystem::path& path() const { return path_; }
  File open_file(const std::string& relative) const;  // errors call it by its relative name
  bool contains(const std::string& relative) const;
  // Names of the entries, without "." and "..", sorted by byte value.
  std::vector<std::string> list() const;

 private:
  Directory(FileDescriptor descriptor, std::filesystem::path path);
  FileDescriptor open_below(const std::string& relative, int flags) const;

  FileDescriptor descriptor_;
  std::filesystem::path path_;
};

// Bytes that a process without privileges can still write where `path` is; nullopt where the file
// system does not say.
std::optional<uint64_t> free_bytes(const std::filesystem::path& path);

// Writes a file, or a folder with everything below it, to the device. Links are not followed.
void sync_tree(const std::filesystem::path& path);
void sync_directory(const std::filesystem::path& path);

// Renames; never replaces anything at `target`: throws AlreadyExists.
void rename_to_free_name(const std::filesystem::path& source, const std::filesystem::path& target);
// Swaps two names in one step. False where the file system cannot do that.
bool exchange_names(const std::filesystem::path& a, const std::filesystem::path& b);

// An exclusive lock that the system takes away when the process ends, however it ends.
class LockFile {
 public:
  // Creates the file if it is not there. nullopt where another process holds the lock.
  static std::optional<LockFile> try_lock(const std::filesystem::path& path);

 private:
  explicit LockFile(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

}  // namespace ckpt

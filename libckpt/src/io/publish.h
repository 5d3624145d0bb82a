#pragma once

#include <filesystem>
#include <optional>

#include "io/file.h"

namespace ckpt {

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

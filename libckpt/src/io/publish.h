#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace ckpt {

// Renames; never replaces anything at `target`: throws AlreadyExists.
void rename_to_free_name(const std::filesystem::path& source, const std::filesystem::path& target);
// Renames over what is at `target`.
void replace_name(const std::filesystem::path& source, const std::filesystem::path& target);
// Makes `target` a file with the content of `source` that takes no time and no room: shares its
// blocks where the file system can, else it is a hard link. Throws IoFailure where neither can be.
void link_file(const std::filesystem::path& source, const std::filesystem::path& target);
// Swaps two names in one step. False where the file system cannot do that.
bool exchange_names(const std::filesystem::path& a, const std::filesystem::path& b);

// A small file of our own. replace_text() puts the whole text in place, on the device, in one step;
// text_of() gives nullopt where there is no file.
void replace_text(const std::filesystem::path& path, std::string_view text);
std::optional<std::string> text_of(const std::filesystem::path& path);
// Removes what a replace_text() left that was killed. False where nothing was.
bool remove_unfinished_text(const std::filesystem::path& path);

// A text that a file or folder keeps beside its content, whatever its name: an extended attribute.
// False where the file system has none; attached_text() is then empty.
bool attach_text(const std::filesystem::path& path, std::string_view text);
std::string attached_text(const std::filesystem::path& path);

// An exclusive lock that the system takes away when the process ends, however it ends.
class LockFile {
 public:
  // Creates the file if it is not there. nullopt where another process holds the lock.
  static std::optional<LockFile> try_lock(const std::filesystem::path& path);

  // False on a file system without locks: it is the file that excludes others, as long as it is
  // there.
  bool is_of_the_system() const { return is_of_the_system_; }

 private:
  LockFile(FileDescriptor descriptor, bool is_of_the_system)
      : descriptor_(std::move(descriptor)), is_of_the_system_(is_of_the_system) {}
  FileDescriptor descriptor_;
  bool is_of_the_system_;
};

}  // namespace ckpt

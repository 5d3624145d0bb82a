#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"

namespace ckpt {

// Renames; never replaces anything at `target`: throws AlreadyExists.
void rename_to_free_name(const Place& source, const Place& target);
// Renames over what is at `target`.
void replace_name(const Place& source, const Place& target);
// Makes `target` a file with the content of `source` that takes no time and no room: shares its
// blocks where the file system can, else it is a hard link. Throws IoFailure where neither can be.
void link_file(const std::filesystem::path& source, const Place& target);
// Swaps two names in one step. False where the file system cannot do that.
bool exchange_names(const Place& a, const Place& b);

// A small file of our own, NAME, which is made as .NAME.new beside it. replace_text() puts the
// whole text in place, on the device, in one step, and throws AlreadyExists where .NAME.new is not
// what it could have left. text_of() gives nullopt where there is no file. A text is a number,
// "release", or begins with kTextMark.
constexpr std::string_view kTextMark = "shardwise ";
bool is_text_of_ours(const Place& place);  // or its start, zeros, nothing
void replace_text(const Place& folder, const std::string& name, std::string_view text);
std::optional<std::string> text_of(const Place& place);
// Of several processes the first one puts a text in place, which it makes as NAME-RANK. False:
// another one has.
bool note_first(const Place& folder, const std::string& name, uint32_t rank,
                const std::string& text);
void check_unfinished_text(const Place& folder, const std::string& name);  // throws as it does
// Removes what a replace_text() left that was killed. False where nothing was. Throws as it does.
bool remove_unfinished_text(const Place& folder, const std::string& name);

// A text that a file or folder keeps beside its content, whatever its name: an extended attribute.
// False where the file system has none; attached_text() is then empty.
bool attach_text(const Place& place, std::string_view text);
std::string attached_text(const std::filesystem::path& path);

// An exclusive lock that the system takes away when the process ends, however it ends.
class LockFile {
 public:
  // Creates the file if it is not there. nullopt where another process holds the lock. Throws
  // AlreadyExists where something else than an empty file is there.
  static std::optional<LockFile> try_lock(const Place& place);

  // False on a file system without locks: it is the file that excludes others, as long as it is
  // there.
  bool is_of_the_system() const { return is_of_the_system_; }
  // Equal for all whom the lock surely excludes: those who use this mount of this machine, since it
  // started. On a network file system it may not reach others.
  std::string domain() const;

 private:
  LockFile(FileDescriptor descriptor, bool is_of_the_system)
      : descriptor_(std::move(descriptor)), is_of_the_system_(is_of_the_system) {}
  FileDescriptor descriptor_;
  bool is_of_the_system_;
};

}  // namespace ckpt

#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "io/system_calls.h"

namespace ckpt {

class FileDescriptor;

// Where a file or folder is. Either a path, which the system resolves at each call, links included;
// or a name below a folder that is held open: then no link is followed, neither at the end nor on
// the way, and nothing that is renamed or replaced above that folder counts.
class Place {
 public:
  Place(std::filesystem::path path) : path_(std::move(path)) {}

  // The folder at a place, held open from now on. Throws as throw_errno(), and where a link or
  // anything else stands in place of a folder below a held one.
  static Place held(const Place& folder);

  Place operator/(const std::filesystem::path& below) const;
  const std::filesystem::path& path() const { return path_; }  // as errors show it
  bool is_held() const { return holder_ != nullptr; }

 private:
  friend class NameAt;
  std::filesystem::path path_;
  std::shared_ptr<const FileDescriptor> holder_;
  std::filesystem::path below_;  // of it; empty: the folder itself
};

// What system calls take of a place: an open folder and a name in it. Folders between a held folder
// and the name are opened one by one. Throws Error, where one of them cannot be: NotFound where it
// is absent, AlreadyExists where it is a link or no folder.
class NameAt {
 public:
  explicit NameAt(const Place& place);

  int folder() const;
  const char* path() const { return name_.c_str(); }
  SystemCalls::Name name() const { return {folder(), path()}; }
  int no_follow() const { return no_follow_; }  // O_NOFOLLOW, where links are not followed

 private:
  void enter(const std::filesystem::path& name, const std::filesystem::path& shown);

  std::shared_ptr<const FileDescriptor> folder_;
  std::string name_;
  int no_follow_ = 0;
};

// Something that is not ours is where our files go. Throws AlreadyExists.
[[noreturn]] void refuse_foreign(const std::filesystem::path& path, const std::string& what);

}  // namespace ckpt

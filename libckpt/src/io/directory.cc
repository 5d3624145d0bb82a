#include "io/directory.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "io/system_calls.h"

namespace ckpt {

namespace {

namespace fs = std::filesystem;

EntryKind kind(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return EntryKind::File;
  if (S_ISDIR(status.st_mode)) return EntryKind::Folder;
  if (S_ISLNK(status.st_mode)) return EntryKind::Link;
  return EntryKind::Other;
}

using Status = struct stat;
using Look = int (SystemCalls::*)(const char*, Status&);  // stat or lstat

std::optional<Status> look(const fs::path& path, Look call) {
  Status status = {};
  if (uninterrupted([&] { return (system_calls().*call)(path.c_str(), status); }) == 0) {
    return status;
  }
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_errno(path.string(), "read the file's size and type", errno);
}

Folder::Entry entry(const std::optional<Status>& status) {
  return status ? Folder::Entry{kind(*status), file_state(*status)} : Folder::Entry{};
}

void sync(const FileDescriptor& descriptor, const fs::path& path) {
  const int result = uninterrupted([&] { return system_calls().fsync(descriptor.get()); });
  // EINVAL: a file system (a network one, say) that has nothing to synchronise here.
  if (result != 0 && errno != EINVAL) throw_errno(path.string(), "flush to the device", errno);
}

void check_removed(const fs::path& path, int result) {
  if (result != 0 && errno != ENOENT) throw_errno(path.string(), "remove", errno);
}

}  // namespace

bool is_safe_relative(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return false;
  const fs::path relative(path);
  if (relative.has_root_path() || !relative.has_filename()) return false;
  return std::ranges::none_of(
      relative, [](const fs::path& part) { return part.empty() || part == ".." || part == "."; });
}

Directory::Directory(FileDescriptor descriptor, fs::path path)
    : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

Directory Directory::open(const fs::path& path) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  const int fd = uninterrupted([&] { return system_calls().open(path.c_str(), kFlags, 0); });
  if (fd < 0) throw_errno(path.string(), "open the folder", errno);
  return Directory(FileDescriptor(fd), path);
}

// Throws unless something opens.
FileDescriptor Directory::open_below(const std::string& relative, const std::string& shown,
                                     int flags, Links links) const {
  if (!is_safe_relative(relative)) {
    throw Error(ErrorCode::Corrupt, {shown}, "the file name points outside the checkpoint");
  }
  SystemCalls& calls = system_calls();
  const bool stays = links == Links::StayInside;
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = stays ? RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS : 0;
  int fd = -1;
  do {
    fd = calls.openat2(descriptor_.get(), relative.c_str(), how);
  } while (fd < 0 && (errno == EAGAIN || errno == EINTR));  // EAGAIN: a rename raced with it
  // Kernels before 5.6, and sandboxes that do not know the call: links that have to stay inside are
  // then not followed at all.
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
    const int all_flags = flags | O_CLOEXEC | (stays ? O_NOFOLLOW : 0);
    fd =
        uninterrupted([&] { return calls.openat(descriptor_.get(), relative.c_str(), all_flags); });
  }
  if (fd >= 0) return FileDescriptor(fd);
  if (errno != EXDEV && errno != ELOOP) throw_errno(shown, "open", errno);
  throw Error(ErrorCode::Corrupt, {shown},
              "the symbolic link points outside the checkpoint, or to itself",
              stays ? "--follow-links reads what a link points to" : "");
}

File Directory::open_file(const std::string& relative, std::string shown, Links links) const {
  if (shown.empty()) shown = relative;
  FileDescriptor descriptor = open_below(relative, shown, O_RDONLY | O_NONBLOCK | O_NOCTTY, links);
  return File(std::move(descriptor), std::move(shown));
}

void Directory::check_inside(const std::string& relative) const {
  open_below(relative, relative, O_PATH, Links::StayInside);
}

std::vector<std::string> Directory::list() const {
  std::vector<std::string> names;
  while (system_calls().list(descriptor_.get(), names) != 0) {
    if (errno != EINTR) throw_errno(path_.string(), "list", errno);
    names.clear();
  }
  std::ranges::sort(names);
  return names;
}

void Directory::sync() const { ckpt::sync(descriptor_, path_); }

Folder::Entry entry_at(const fs::path& path) { return entry(look(path, &SystemCalls::lstat)); }
Folder::Entry entry_behind(const fs::path& path) { return entry(look(path, &SystemCalls::stat)); }
EntryKind kind_of_entry(const fs::path& path) { return entry_at(path).kind; }

std::optional<FileState> state_of_entry(const fs::path& path) {
  const Folder::Entry found = entry_at(path);
  return found.kind == EntryKind::Absent ? std::nullopt : std::optional(found.state);
}

bool are_same(const fs::path& a, const fs::path& b) {
  const auto status_a = look(a, &SystemCalls::stat), status_b = look(b, &SystemCalls::stat);
  return status_a && status_b && status_a->st_dev == status_b->st_dev &&
         status_a->st_ino == status_b->st_ino;
}

std::optional<uint64_t> free_bytes(const fs::path& path) {
  struct statvfs status = {};
  const int result = uninterrupted([&] { return system_calls().statvfs(path.c_str(), status); });
  if (result != 0) throw_errno(path.string(), "query the free space", errno);
  if (status.f_blocks == 0) return std::nullopt;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

fs::path resolved(const fs::path& path) {
  std::string text;
  const int result = uninterrupted([&] { return system_calls().realpath(path.c_str(), text); });
  if (result != 0) throw_errno(path.string(), "resolve the path", errno);
  return text;
}

bool make_folder(const fs::path& path) {
  if (uninterrupted([&] { return system_calls().mkdir(path.c_str(), 0777); }) == 0) return true;
  if (errno != EEXIST) throw_errno(path.string(), "create", errno);
  return false;
}

void make_folders(const fs::path& path) {
  std::vector<fs::path> missing;
  for (fs::path above = path; entry_behind(above).kind == EntryKind::Absent;) {
    missing.push_back(above);
    if (!above.has_relative_path() || above.parent_path().empty()) break;
    above = above.parent_path();
  }
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) make_folder(*folder);
}

FolderTree walk(const fs::path& folder) {
  FolderTree tree{{folder}, {}};
  for (size_t i = 0; i < tree.folders.size(); ++i) {
    const fs::path parent = tree.folders[i];
    for (const std::string& name : Directory::open(parent).list()) {
      const bool is_folder = kind_of_entry(parent / name) == EntryKind::Folder;
      (is_folder ? tree.folders : tree.files).push_back(parent / name);
    }
  }
  return tree;
}

void remove_tree(const fs::path& path) {
  const EntryKind kind = kind_of_entry(path);
  if (kind == EntryKind::Absent) return;
  SystemCalls& calls = system_calls();
  const FolderTree tree = kind == EntryKind::Folder ? walk(path) : FolderTree{{}, {path}};
  for (const fs::path& file : tree.files) {
    check_removed(file, uninterrupted([&] { return calls.unlink(file.c_str()); }));
  }
  for (auto folder = tree.folders.rbegin(); folder != tree.folders.rend(); ++folder) {
    check_removed(*folder, uninterrupted([&] { return calls.rmdir(folder->c_str()); }));
  }
}

void remove_folder_if_empty(const fs::path& path) {
  const int result = uninterrupted([&] { return system_calls().rmdir(path.c_str()); });
  if (result != 0 && errno != ENOTEMPTY && errno != EEXIST) check_removed(path, result);
}

void sync_file(const fs::path& path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int fd = uninterrupted([&] { return system_calls().open(path.c_str(), kFlags, 0); });
  if (fd < 0) throw_errno(path.string(), "open", errno);
  sync(FileDescriptor(fd), path);
}

void sync_tree(const fs::path& path) {
  if (kind_of_entry(path) != EntryKind::Folder) return sync_file(path);
  const FolderTree tree = walk(path);
  for (const fs::path& file : tree.files) {
    if (kind_of_entry(file) == EntryKind::File) sync_file(file);
  }
  for (const fs::path& folder : tree.folders) Directory::open(folder).sync();
}

}  // namespace ckpt

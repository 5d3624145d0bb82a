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

// None where a folder on the way is not there.
std::optional<NameAt> name_at(const Place& place) {
  return unless_gone<NameAt>([&] { return NameAt(place); });
}

// `flags`: as of fstatat().
std::optional<Status> look(const Place& place, int flags) {
  const auto at = name_at(place);
  if (!at) return std::nullopt;
  Status status = {};
  const auto call = [&] { return system_calls().fstatat(at->folder(), at->path(), status, flags); };
  if (uninterrupted(call) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_errno(place.path().string(), "read the file's size and type", errno);
}

Folder::Entry entry(const std::optional<Status>& status) {
  return status ? Folder::Entry{kind(*status), file_state(*status)} : Folder::Entry{};
}

void sync(const FileDescriptor& descriptor, const fs::path& path) {
  const int result = uninterrupted([&] { return system_calls().fsync(descriptor.get()); });
  // EINVAL: a file system (a network one, say) that has nothing to synchronise here.
  if (result != 0 && errno != EINVAL) throw_errno(path.string(), "flush to the device", errno);
}

// 0, or what errno says; also 0 where nothing is.
int unlinked(const Place& place, int flags) {
  const auto at = name_at(place);
  if (!at) return 0;
  const auto call = [&] { return system_calls().unlinkat(at->folder(), at->path(), flags); };
  return uninterrupted(call) == 0 || errno == ENOENT ? 0 : errno;
}

void remove_name(const Place& place, int flags) {
  if (const int error = unlinked(place, flags)) throw_errno(place.path().string(), "remove", error);
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

Directory Directory::open(const Place& place) {
  const NameAt at(place);
  FileDescriptor opened = at.open(O_RDONLY | O_DIRECTORY);
  if (!opened.is_open()) throw_errno(place.path().string(), "open the folder", errno);
  return Directory(std::move(opened), place.path());
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
    fd = uninterrupted(
        [&] { return calls.openat(descriptor_.get(), relative.c_str(), all_flags, 0); });
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

Folder::Entry entry_at(const Place& place) { return entry(look(place, AT_SYMLINK_NOFOLLOW)); }
Folder::Entry entry_behind(const fs::path& path) { return entry(look(path, 0)); }
EntryKind kind_of_entry(const Place& place) { return entry_at(place).kind; }

std::optional<FileState> state_of_entry(const Place& place) {
  const Folder::Entry found = entry_at(place);
  return found.kind == EntryKind::Absent ? std::nullopt : std::optional(found.state);
}

bool are_same(const fs::path& a, const fs::path& b) {
  const auto status_a = look(a, 0), status_b = look(b, 0);
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

bool make_folder(const Place& place) {
  const NameAt at(place);
  const auto call = [&] { return system_calls().mkdirat(at.folder(), at.path(), 0777); };
  if (uninterrupted(call) == 0) return true;
  if (errno != EEXIST) throw_errno(place.path().string(), "create", errno);
  return false;
}

void make_folders(const Place& folder, const fs::path& below) {
  fs::path made;
  for (const fs::path& part : below) make_folder(folder / (made /= part));
}

bool is_mount(const Place& place) {
  const NameAt name(place);
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_NO_XDEV;
  const int opened =
      uninterrupted([&] { return system_calls().openat2(name.folder(), name.path(), how); });
  if (opened >= 0) system_calls().close(opened);
  if (opened >= 0 || errno == ENOSYS || errno == EINVAL) return false;
  if (errno != EXDEV) throw_errno(place.path().string(), "open", errno);
  return true;
}

FolderTree walk(const Place& folder) {
  FolderTree tree{{folder}, {}};
  for (size_t i = 0; i < tree.folders.size(); ++i) {
    const Place parent = tree.folders[i];
    for (const std::string& name : Directory::open(parent).list()) {
      const bool is_folder = kind_of_entry(parent / name) == EntryKind::Folder;
      (is_folder ? tree.folders : tree.files).push_back(parent / name);
    }
  }
  return tree;
}

void remove(const FolderTree& tree) {
  for (const Place& file : tree.files) remove_name(file, 0);
  for (auto folder = tree.folders.rbegin(); folder != tree.folders.rend(); ++folder) {
    remove_name(*folder, AT_REMOVEDIR);
  }
}

void remove_tree(const Place& place) {
  const EntryKind kind = kind_of_entry(place);
  if (kind == EntryKind::Absent) return;
  remove(kind == EntryKind::Folder ? walk(place) : FolderTree{{}, {place}});
}

void remove_file(const Place& place) { remove_name(place, 0); }

void remove_folder_if_empty(const Place& place) {
  const int error = unlinked(place, AT_REMOVEDIR);
  if (error == 0 || error == ENOTEMPTY || error == EEXIST) return;
  throw_errno(place.path().string(), "remove", error);
}

void sync_file(const Place& place) {
  const NameAt at(place);
  const FileDescriptor opened = at.open(O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!opened.is_open()) throw_errno(place.path().string(), "open", errno);
  sync(opened, place.path());
}

void sync_tree(const Place& place) {
  if (kind_of_entry(place) != EntryKind::Folder) return sync_file(place);
  const FolderTree tree = walk(place);
  for (const Place& file : tree.files) {
    if (kind_of_entry(file) == EntryKind::File) sync_file(file);
  }
  for (const Place& folder : tree.folders) Directory::open(folder).sync();
}

}  // namespace ckpt

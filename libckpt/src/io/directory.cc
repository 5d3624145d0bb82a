#include "io/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

namespace ckpt {

namespace {

namespace fs = std::filesystem;

FileDescriptor open_for_sync(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags);
  if (fd < 0) throw_errno(path.string(), "open", errno);
  return FileDescriptor(fd);
}

void sync(const FileDescriptor& descriptor, const fs::path& path) {
  // EINVAL: a file system (a network one, say) that has nothing to synchronise here.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) {
    throw_errno(path.string(), "write to the device", errno);
  }
}

// renameat2() flags that the file system or the kernel does not know.
bool is_not_supported(int error_number) {
  return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP;
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
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno(path.string(), "open the folder", errno);
  return Directory(FileDescriptor(fd), path);
}

FileDescriptor Directory::open_below(const std::string& relative, int flags) const {
  if (!is_safe_relative(relative)) {
    throw Error(ErrorCode::Corrupt, {relative}, "a file name that leads out of the checkpoint");
  }
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  long fd = -1;
  do {
    fd = ::syscall(SYS_openat2, descriptor_.get(), relative.c_str(), &how, sizeof(how));
  } while (fd < 0 && errno == EAGAIN);  // a rename elsewhere raced with the look-up
  // Kernels before 5.6, and sandboxes that do not know the call: links are then not followed at
  // all.
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
    fd = ::openat(descriptor_.get(), relative.c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
  }
  return FileDescriptor(static_cast<int>(fd));
}

File Directory::open_file(const std::string& relative) const {
  FileDescriptor descriptor = open_below(relative, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!descriptor.is_open()) {
    if (errno == EXDEV || errno == ELOOP) {
      throw Error(ErrorCode::Corrupt, {relative}, "a link that leads out of the checkpoint");
    }
    throw_errno(relative, "open", errno);
  }
  return File(std::move(descriptor), relative);
}

bool Directory::contains(const std::string& relative) const {
  return is_safe_relative(relative) && open_below(relative, O_PATH).is_open();
}

std::vector<std::string> Directory::list() const {
  // A descriptor of its own: readdir() moves the position that duplicates would share.
  const int fd = ::openat(descriptor_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno(path_.string(), "list", errno);
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(fd), close);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) throw_errno(path_.string(), "list", errno);
  std::ranges::sort(names);
  return names;
}

std::optional<uint64_t> free_bytes(const fs::path& path) {
  struct statvfs status = {};
  if (::statvfs(path.c_str(), &status) != 0) {
    throw_errno(path.string(), "ask for free room", errno);
  }
  if (status.f_blocks == 0) return std::nullopt;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

void sync_directory(const fs::path& path) { sync(open_for_sync(path, O_DIRECTORY), path); }

void sync_tree(const fs::path& path) {
  if (!fs::is_directory(fs::symlink_status(path))) return sync(open_for_sync(path, 0), path);
  std::vector<fs::path> folders{path};
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const fs::file_status status = entry.symlink_status();
    if (fs::is_directory(status)) folders.push_back(entry.path());
    if (fs::is_regular_file(status)) sync(open_for_sync(entry.path(), 0), entry.path());
  }
  for (const fs::path& folder : folders) sync_directory(folder);
}

void rename_to_free_name(const fs::path& source, const fs::path& target) {
  if (::renameat2(AT_FDCWD, source.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  if (!is_not_supported(errno)) throw_errno(target.string(), "publish", errno);
  // A file system without the flag: between this look and the rename somebody else may come.
  if (fs::exists(fs::symlink_status(target))) throw_errno(target.string(), "publish", EEXIST);
  if (::rename(source.c_str(), target.c_str()) != 0) {
    throw_errno(target.string(), "publish", errno);
  }
}

bool exchange_names(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (!is_not_supported(errno)) throw_errno(b.string(), "publish", errno);
  return false;
}

std::optional<LockFile> LockFile::try_lock(const fs::path& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  int fd = ::open(path.c_str(), kFlags | O_EXCL, 0666);
  const bool is_new = fd >= 0;
  if (!is_new && errno == EEXIST) fd = ::open(path.c_str(), kFlags, 0666);
  if (fd < 0) throw_errno(path.string(), "create", errno);
  FileDescriptor descriptor(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return std::nullopt;
    const bool has_no_locks =
        errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL;
    if (!has_no_locks) throw_errno(path.string(), "lock", errno);
    // Then only who makes the file holds it, and a left-over one must be removed by hand.
    if (!is_new) return std::nullopt;
  }
  // Its last holder may have removed the file between our open() and our flock(): then the lock is
  // on a file without a name, which excludes nobody.
  struct stat held = {};
  struct stat named = {};
  const bool same = ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  if (!same) return std::nullopt;
  return LockFile(std::move(descriptor));
}

}  // namespace ckpt

#include "io/publish.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdio>

#include "base/text.h"
#include "io/directory.h"
#include "io/system_calls.h"

namespace ckpt {

namespace {

namespace fs = std::filesystem;

constexpr const char* kAttributeName = "user.shardwise.job";
constexpr size_t kAttributeBytesMax = 64 << 10;        // Linux's own limit
constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;  // a line for each of millions of files

// What the file system or the kernel does not know: flags of renameat2(), locks.
bool is_not_supported(int error_number) {
  return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP;
}

bool has_no_locks(int error_number) {
  return error_number == ENOLCK || is_not_supported(error_number);
}

int rename_with(const fs::path& source, const fs::path& target, unsigned flags) {
  return uninterrupted(
      [&] { return system_calls().renameat2(source.c_str(), target.c_str(), flags); });
}

bool share_blocks(const fs::path& source, const fs::path& target) {
  SystemCalls& calls = system_calls();
  const auto open = [&](const fs::path& path, int flags) {
    return FileDescriptor(
        uninterrupted([&] { return calls.open(path.c_str(), flags | O_CLOEXEC, 0666); }));
  };
  const FileDescriptor from = open(source, O_RDONLY);
  if (!from.is_open()) throw_errno(source.string(), "open", errno);
  const FileDescriptor to = open(target, O_WRONLY | O_CREAT | O_EXCL);
  if (!to.is_open()) throw_errno(target.string(), "create", errno);
  if (uninterrupted([&] { return calls.clone(to.get(), from.get()); }) == 0) return true;
  remove_tree(target);
  return false;
}

// Where a text is made. Hidden: a kill may leave it beside files that are not ours.
fs::path unfinished(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + ".new");
}

}  // namespace

void rename_to_free_name(const fs::path& source, const fs::path& target) {
  if (rename_with(source, target, RENAME_NOREPLACE) == 0) return;
  if (!is_not_supported(errno)) throw_errno(target.string(), "publish", errno);
  // A file system without the flag: between this look and the rename somebody else may come.
  if (is_there(target)) throw_errno(target.string(), "publish", EEXIST);
  replace_name(source, target);
}

void replace_name(const fs::path& source, const fs::path& target) {
  const int result =
      uninterrupted([&] { return system_calls().rename(source.c_str(), target.c_str()); });
  if (result != 0) throw_errno(target.string(), "publish", errno);
}

void link_file(const fs::path& source, const fs::path& target) {
  const fs::path file = resolved(source);
  if (share_blocks(file, target)) return sync_file(target);
  if (uninterrupted([&] { return system_calls().link(file.c_str(), target.c_str()); }) == 0) return;
  if (errno == EXDEV) {
    throw Error(ErrorCode::IoFailure, {target.string()},
                "is on a different file system from the source, so nothing can be linked",
                "without --link, the files are copied");
  }
  throw_errno(target.string(), "link", errno);
}

bool exchange_names(const fs::path& a, const fs::path& b) {
  if (rename_with(a, b, RENAME_EXCHANGE) == 0) return true;
  if (!is_not_supported(errno)) throw_errno(b.string(), "publish", errno);
  return false;
}

void replace_text(const fs::path& path, std::string_view text) {
  const fs::path fresh = unfinished(path);
  remove_tree(fresh);
  try {
    File::create(fresh, text.size()).write_at(0, std::as_bytes(std::span(text)));
    sync_file(fresh);
    replace_name(fresh, path);
  } catch (...) {
    system_calls().unlink(fresh.c_str());  // if that fails, too, the first error is told
    throw;
  }
  Directory::open(path.parent_path()).sync();
}

bool remove_unfinished_text(const fs::path& path) {
  const fs::path left = unfinished(path);
  if (!is_there(left)) return false;
  remove_tree(left);
  return true;
}

std::optional<std::string> text_of(const fs::path& path) {
  if (kind_of_entry(path) != EntryKind::File) return std::nullopt;
  std::optional<File> opened;
  try {
    opened.emplace(File::open(path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) throw;
    return std::nullopt;  // another process has removed it since
  }
  if (opened->size_bytes() > kTextBytesMax) {
    throw Error(ErrorCode::Corrupt, {path.string()}, "is longer than such a file can be");
  }
  return head_of(*opened, kTextBytesMax);
}

bool attach_text(const fs::path& path, std::string_view text) {
  return system_calls().setxattr(path.c_str(), kAttributeName, std::string(text)) == 0;
}

std::string attached_text(const fs::path& path) {
  std::string text(kAttributeBytesMax, '\0');
  const ssize_t count = system_calls().getxattr(path.c_str(), kAttributeName, text);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

std::optional<LockFile> LockFile::try_lock(const fs::path& path) {
  SystemCalls& calls = system_calls();
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const auto open = [&](int flags) {
    return uninterrupted([&] { return calls.open(path.c_str(), flags, 0666); });
  };
  int fd = open(kFlags | O_EXCL);
  const bool is_new = fd >= 0;
  if (!is_new && errno == EEXIST) fd = open(kFlags);
  if (fd < 0) throw_errno(path.string(), "create", errno);
  FileDescriptor descriptor(fd);
  const bool has_lock = uninterrupted([&] { return calls.flock(fd, LOCK_EX | LOCK_NB); }) == 0;
  if (!has_lock) {
    if (errno == EWOULDBLOCK) return std::nullopt;
    if (!has_no_locks(errno)) throw_errno(path.string(), "lock", errno);
    // Then only who makes the file holds it, and a left-over one must be removed by hand.
    if (!is_new) return std::nullopt;
  }
  // Its last holder may have removed the file between our open() and our flock(): then the lock is
  // on a file without a name, which excludes nobody.
  struct stat held = {};
  struct stat named = {};
  if (uninterrupted([&] { return calls.fstat(fd, held); }) != 0) {
    throw_errno(path.string(), "lock", errno);
  }
  const bool is_named = uninterrupted([&] { return calls.lstat(path.c_str(), named); }) == 0;
  if (!is_named && errno != ENOENT) throw_errno(path.string(), "lock", errno);
  if (!is_named || held.st_ino != named.st_ino || held.st_dev != named.st_dev) return std::nullopt;
  return LockFile(std::move(descriptor), has_lock);
}

}  // namespace ckpt

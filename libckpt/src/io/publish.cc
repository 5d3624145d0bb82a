#include "io/publish.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "io/directory.h"
#include "io/system_calls.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAttributeName = "user.shardwise.job";
constexpr size_t kAttributeBytesMax = 64 << 10;        // Linux's own limit
constexpr uint64_t kTextBytesMax = uint64_t{1} << 30;  // a line for each of millions of files
constexpr std::string_view kReleaseWord = "release";
constexpr const char* kNoLock = "is not an empty file, as locks of this program are";

// What the file system or the kernel does not know: flags of renameat2(), locks.
bool is_not_supported(int error_number) {
  return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP;
}

int rename_with(const Place& source, const Place& target, unsigned flags) {
  const NameAt from(source), to(target);
  return uninterrupted([&] { return system_calls().renameat2(from.name(), to.name(), flags); });
}

// A second name, which never replaces anything, and the first one goes. False where the file system
// has no links, and for a folder.
bool move_by_link(const Place& source, const Place& target) {
  const NameAt from(source), to(target);
  if (uninterrupted([&] { return system_calls().linkat(from.name(), to.name()); }) == 0) {
    remove_file(source);
    return true;
  }
  if (errno == EEXIST) throw_errno(target.path().string(), "publish", EEXIST);
  return false;
}

bool share_blocks(const fs::path& source, const Place& target) {
  const NameAt source_at(source), target_at(target);
  const FileDescriptor from = source_at.open(O_RDONLY);
  if (!from.is_open()) throw_errno(source.string(), "open", errno);
  const FileDescriptor to = target_at.open(O_WRONLY | O_CREAT | O_EXCL);
  if (!to.is_open()) throw_errno(target.path().string(), "create", errno);
  if (uninterrupted([&] { return system_calls().clone(to.get(), from.get()); }) == 0) return true;
  remove_file(target);
  return false;
}

// Where a text is made. Hidden: a kill may leave it beside files that are not ours.
Place unfinished(const Place& folder, const std::string& name) {
  return folder / ("." + name + ".new");
}

// Again where another client of a network file system writes or replaces the file meanwhile: it may
// seem shorter than it was, or its handle be stale.
template <typename Read>
auto read_anew(Read read) {
  constexpr int kReadsMax = 5;
  for (int count = 1;; ++count) {
    try {
      return read();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::IoFailure || count == kReadsMax) throw;
    }
  }
}

// While another error is on its way.
void try_to_remove(const Place& file) {
  try {
    remove_file(file);
  } catch (const std::exception&) {
  }
}

}  // namespace

bool is_text_of_ours(const Place& place) {
  return read_anew([&] {
    constexpr size_t kNumberBytesMax = 20;
    const EntryKind kind = kind_of_entry(place);
    if (kind != EntryKind::File) return kind == EntryKind::Absent;
    const auto file = unless_gone<File>([&] { return File::open(place); });
    if (!file) return true;
    const std::string head = head_of(*file, kNumberBytesMax);
    const std::string_view start = std::string_view(head).substr(0, head.find('\0'));
    if (kTextMark.starts_with(start.substr(0, kTextMark.size()))) return true;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const bool is_word = kReleaseWord.starts_with(start) || std::ranges::all_of(start, is_digit);
    return file->size_bytes() <= kNumberBytesMax && is_word;
  });
}

std::optional<std::string> text_of(const Place& place) {
  return read_anew([&]() -> std::optional<std::string> {
    if (kind_of_entry(place) != EntryKind::File) return std::nullopt;
    const auto opened = unless_gone<File>([&] { return File::open(place); });
    if (!opened) return std::nullopt;
    if (opened->size_bytes() > kTextBytesMax) {
      throw Error(ErrorCode::Corrupt, {place.path().string()}, "is longer than such a file can be");
    }
    return head_of(*opened, kTextBytesMax);
  });
}

void rename_to_free_name(const Place& source, const Place& target) {
  if (rename_with(source, target, RENAME_NOREPLACE) == 0) return;
  if (!is_not_supported(errno)) throw_errno(target.path().string(), "publish", errno);
  // A file system without the flag, as those of networks are.
  if (move_by_link(source, target)) return;
  // Between this look and the rename somebody else may come.
  if (is_there(target)) throw_errno(target.path().string(), "publish", EEXIST);
  replace_name(source, target);
}

void replace_name(const Place& source, const Place& target) {
  if (rename_with(source, target, 0) != 0) throw_errno(target.path().string(), "publish", errno);
}

void link_file(const fs::path& source, const Place& target) {
  const fs::path file = resolved(source);
  if (share_blocks(file, target)) return sync_file(target);
  const NameAt at(target);
  const auto call = [&] { return system_calls().linkat({AT_FDCWD, file.c_str()}, at.name()); };
  if (uninterrupted(call) == 0) return;
  if (errno == EXDEV) {
    throw Error(ErrorCode::IoFailure, {target.path().string()},
                "is on a different file system from the source, so nothing can be linked",
                "without --link, the files are copied");
  }
  throw_errno(target.path().string(), "link", errno);
}

bool exchange_names(const Place& a, const Place& b) {
  if (rename_with(a, b, RENAME_EXCHANGE) == 0) return true;
  if (!is_not_supported(errno)) throw_errno(b.path().string(), "publish", errno);
  return false;
}

void replace_text(const Place& folder, const std::string& name, std::string_view text) {
  const Place fresh = unfinished(folder, name);
  remove_unfinished_text(folder, name);
  try {
    File::create(fresh, text.size()).write_at(0, std::as_bytes(std::span(text)));
    sync_file(fresh);
    replace_name(fresh, folder / name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::AlreadyExists) try_to_remove(fresh);
    throw;
  }
  Directory::open(folder).sync();
}

void check_unfinished_text(const Place& folder, const std::string& name) {
  const Place left = unfinished(folder, name);
  if (!is_there(left) || is_text_of_ours(left)) return;
  refuse_foreign(left.path(), "is not what an interrupted run of this program leaves");
}

bool remove_unfinished_text(const Place& folder, const std::string& name) {
  const Place left = unfinished(folder, name);
  if (!is_there(left)) return false;
  check_unfinished_text(folder, name);
  remove_file(left);
  return true;
}

bool note_first(const Place& folder, const std::string& name, uint32_t rank,
                const std::string& text) {
  if (is_there(folder / name)) return false;
  const std::string proposal = name + "-" + std::to_string(rank);
  replace_text(folder, proposal, text);
  try {
    rename_to_free_name(folder / proposal, folder / name);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::AlreadyExists) throw;
    remove_file(folder / proposal);
    return false;
  }
}

bool attach_text(const Place& place, std::string_view text) {
  const NameAt at(place);
  const FileDescriptor opened = at.open(O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return opened.is_open() &&
         system_calls().fsetxattr(opened.get(), kAttributeName, std::string(text)) == 0;
}

std::string attached_text(const fs::path& path) {
  std::string text(kAttributeBytesMax, '\0');
  const ssize_t count = system_calls().getxattr(path.c_str(), kAttributeName, text);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

std::optional<LockFile> LockFile::try_lock(const Place& place) {
  SystemCalls& calls = system_calls();
  const std::string shown = place.path().string();
  const NameAt at(place);
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  FileDescriptor descriptor = at.open(kFlags | O_EXCL);
  const bool is_new = descriptor.is_open();
  if (!is_new && errno == EEXIST) descriptor = at.open(kFlags);
  const int fd = descriptor.get();
  if (fd < 0 && (errno == ELOOP || errno == EISDIR)) refuse_foreign(shown, kNoLock);
  if (fd < 0) throw_errno(shown, "create", errno);
  const bool has_lock = uninterrupted([&] { return calls.flock(fd, LOCK_EX | LOCK_NB); }) == 0;
  if (!has_lock) {
    if (errno == EWOULDBLOCK) return std::nullopt;
    if (errno != ENOLCK && !is_not_supported(errno)) throw_errno(shown, "lock", errno);
    // Then only who makes the file holds it, and a left-over one must be removed by hand.
    if (!is_new) return std::nullopt;
  }
  // Its last holder may have removed the file between our open() and our flock(): then the lock is
  // on a file without a name, which excludes nobody.
  struct stat held = {}, named = {};
  const auto look = [&] {
    return calls.fstatat(at.folder(), at.path(), named, AT_SYMLINK_NOFOLLOW);
  };
  if (uninterrupted([&] { return calls.fstat(fd, held); }) != 0) throw_errno(shown, "lock", errno);
  const bool is_named = uninterrupted(look) == 0;
  if (!is_named && errno != ENOENT) throw_errno(shown, "lock", errno);
  if (!S_ISREG(held.st_mode) || held.st_size != 0) refuse_foreign(shown, kNoLock);
  if (!is_named || held.st_ino != named.st_ino || held.st_dev != named.st_dev) return std::nullopt;
  return LockFile(std::move(descriptor), has_lock);
}

std::string LockFile::domain() const {
  SystemCalls& calls = system_calls();
  char boot[64] = {};
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  const FileDescriptor id(calls.openat(AT_FDCWD, "/proc/sys/kernel/random/boot_id", kFlags, 0));
  const ssize_t count = id.is_open() ? calls.pread(id.get(), boot, sizeof(boot), 0) : 0;
  const std::string_view text(boot, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  struct stat status = {};
  if (calls.fstat(descriptor_.get(), status) != 0) throw_errno({}, "lock", errno);
  return std::string(text.substr(0, text.find('\n'))) + " " + std::to_string(status.st_dev);
}

}  // namespace ckpt

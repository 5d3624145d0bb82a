#include "io/file.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/checked_math.h"
#include "io/system_calls.h"

namespace ckpt {

namespace {

ErrorCode code_of(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR: return ErrorCode::NotFound;
    case EEXIST: return ErrorCode::AlreadyExists;
    default: return ErrorCode::IoFailure;
  }
}

// One system call moves at most 0x7FFFF000 bytes on Linux; 1 GiB keeps requests aligned.
constexpr size_t kCallBytesMax = size_t{1} << 30;

// fallocate() gives contiguous room, and ENOSPC now rather than in the middle. Where the file
// system has no such thing, the size alone is set (glibc's posix_fallocate would write every
// block).
void reserve(int fd, const std::string& name, uint64_t count_bytes) {
  if (count_bytes == 0) return;
  SystemCalls& calls = system_calls();
  const auto size = static_cast<off_t>(count_bytes);
  if (uninterrupted([&] { return calls.fallocate(fd, 0, 0, size); }) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw_errno(name, "reserve disk space", errno);
  if (uninterrupted([&] { return calls.ftruncate(fd, size); }) != 0) {
    throw_errno(name, "set the file size", errno);
  }
}

struct stat status_of(int fd, const std::string& name) {
  struct stat status = {};
  if (uninterrupted([&] { return system_calls().fstat(fd, status); }) != 0) {
    throw_errno(name, "read the file's size and type", errno);
  }
  return status;
}

// Whoever writes into a file that was there must not write into somebody else's.
void refuse_shared_file(int fd, const std::filesystem::path& path) {
  const struct stat status = status_of(fd, path.string());
  if (!S_ISREG(status.st_mode)) refuse_foreign(path, "is not a regular file");
  if (status.st_nlink > 1) refuse_foreign(path, "is a file that has another name, too");
}

// What is there is refused where it cannot be opened as a file of ours.
[[noreturn]] void throw_not_opened(const std::filesystem::path& path, std::string_view doing) {
  if (errno == ELOOP) refuse_foreign(path, "is a symbolic link where a file of ours is expected");
  if (errno == EISDIR) refuse_foreign(path, "is a folder where a file of ours is expected");
  throw_errno(path.string(), doing, errno);
}

FileDescriptor open_with(const Place& place, int flags, std::string_view doing,
                         uint64_t reserved_bytes) {
  flags |= O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const NameAt at(place);
  const int fd =
      uninterrupted([&] { return system_calls().openat(at.folder(), at.path(), flags, 0666); });
  if (fd < 0) throw_not_opened(place.path(), doing);
  FileDescriptor descriptor(fd);
  if ((flags & O_EXCL) == 0) refuse_shared_file(fd, place.path());
  reserve(fd, place.path().string(), reserved_bytes);
  return descriptor;
}

}  // namespace

void throw_errno(const std::string& file, std::string_view doing, int error_number) {
  throw Error(
      code_of(error_number), {file},
      "cannot " + std::string(doing) + ": " + std::generic_category().message(error_number));
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) system_calls().close(fd_);
}

DescriptorReserve::DescriptorReserve() {
  constexpr size_t kCount = 3;  // to remove a tree: a folder, one in it, and that one to list it
  constexpr const char* kAlwaysThere = "/";
  while (kept_.size() < kCount) {
    kept_.emplace_back(uninterrupted([] {
      return system_calls().openat(AT_FDCWD, kAlwaysThere, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    }));
    if (!kept_.back().is_open()) throw_errno({}, "keep a file descriptor in reserve", errno);
  }
}

FileDescriptor create_file(const Place& place, uint64_t count_bytes) {
  return open_with(place, O_CREAT | O_EXCL, "create", count_bytes);
}

FileDescriptor create_or_open_file(const Place& place, uint64_t count_bytes) {
  return open_with(place, O_CREAT, "create", count_bytes);
}

FileDescriptor open_to_write(const Place& place) {
  return open_with(place, 0, "open for writing", 0);
}

FileState file_state(const struct stat& status) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  return {status.st_ino, static_cast<uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kSecondNs + status.st_mtim.tv_nsec};
}

File::File(FileDescriptor descriptor, std::string name)
    : descriptor_(std::move(descriptor)), name_(std::move(name)) {
  const struct stat status = status_of(descriptor_.get(), name_);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::IoFailure, {name_}, "is not a regular file");
  }
  state_ = file_state(status);
}

File File::open(const Place& place, std::string name) {
  if (name.empty()) name = place.path().string();
  const NameAt at(place);
  // O_NONBLOCK: a pipe must not make us wait for its writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | at.no_follow();
  const int fd =
      uninterrupted([&] { return system_calls().openat(at.folder(), at.path(), flags, 0); });
  if (fd < 0) throw_errno(name, "open", errno);
  return File(FileDescriptor(fd), std::move(name));
}

File File::create(const Place& place, uint64_t count_bytes) {
  return File(create_file(place, count_bytes), place.path().string());
}

void File::read_at(uint64_t offset_bytes, std::span<std::byte> out) const {
  if (!fits(offset_bytes, out.size(), state_.count_bytes)) {
    throw Error(ErrorCode::Corrupt, {name_, offset_bytes},
                std::to_string(out.size()) + " bytes expected here, but the file ends at " +
                    std::to_string(state_.count_bytes));
  }
  while (!out.empty()) {
    const ssize_t count =
        system_calls().pread(descriptor_.get(), out.data(), std::min(out.size(), kCallBytesMax),
                             static_cast<off_t>(offset_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(name_, "read", errno);
    if (count == 0) throw Error(ErrorCode::IoFailure, {name_, offset_bytes}, "the file shrank");
    offset_bytes += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

void File::write_at(uint64_t offset_bytes, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = system_calls().pwrite(descriptor_.get(), bytes.data(),
                                                std::min(bytes.size(), kCallBytesMax),
                                                static_cast<off_t>(offset_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(name_, "write", errno);
    if (count == 0) throw Error(ErrorCode::IoFailure, {name_, offset_bytes}, "wrote 0 bytes");
    offset_bytes += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

bool File::is_cached(uint64_t offset_bytes) const {
  return system_calls().is_cached(descriptor_.get(), static_cast<off_t>(offset_bytes)) != 0;
}

void File::drop_cached(uint64_t offset_bytes, uint64_t count_bytes) const {
  (void)system_calls().posix_fadvise(descriptor_.get(), static_cast<off_t>(offset_bytes),
                                     static_cast<off_t>(count_bytes), POSIX_FADV_DONTNEED);
}

}  // namespace ckpt

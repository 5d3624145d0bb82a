#include "io/file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/checked_math.h"

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

// Below a held folder, where every folder is ours.
[[noreturn]] void throw_no_folder(const std::filesystem::path& path) {
  if (errno == ELOOP || errno == ENOTDIR) {
    refuse_foreign(path, "is a link or a file where a folder of ours is expected");
  }
  throw_errno(path.string(), "open the folder", errno);
}

// Throws NotFound, IoFailure; AlreadyExists also for anything but a regular file with one name.
FileDescriptor open_with(const Place& place, int flags, std::string_view doing,
                         uint64_t reserved_bytes) {
  const NameAt at(place);
  FileDescriptor descriptor = at.open(flags | O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (!descriptor.is_open()) throw_not_opened(place.path(), doing);
  if ((flags & O_EXCL) == 0) refuse_shared_file(descriptor.get(), place.path());
  reserve(descriptor.get(), place.path().string(), reserved_bytes);
  return descriptor;
}

constexpr uint64_t kDirectBytesMin = 1 << 20;  // shorter files cost less in the page cache

using Use = OutputFile::Use;

bool is_written_in_blocks(uint64_t size_bytes, Use use) {
  return size_bytes >= kDirectBytesMin && use != Use::Closed;
}

FileDescriptor open_output(const Place& place, uint64_t size_bytes, Use use) {
  if (use == Use::Closed) return open_with(place, 0, "open for writing", 0);
  // Who makes it longer than it is would do that behind the back of who has cut it.
  if (use == Use::Shared) return open_with(place, O_CREAT, "create", size_bytes);
  const bool is_long = is_written_in_blocks(size_bytes, use);
  return open_with(place, O_CREAT | O_EXCL, "create",
                   is_long ? align_up(size_bytes, OutputFile::kBlockBytes) : size_bytes);
}

// Larger than what the kernel reads ahead, so that few of its folios lie across a border.
constexpr uint64_t kExtentBytes = uint64_t{32} << 20;
constexpr uint64_t kProbes = 64;

bool is_hardly_cached(const File& file) {
  uint64_t cached = 0;
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    if (file.is_cached(file.size_bytes() / kProbes * probe)) ++cached;
  }
  return cached <= kProbes / 8;
}

}  // namespace

namespace fs = std::filesystem;

void refuse_foreign(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::AlreadyExists, {path.string()},
              what + ": it was not made by this program, and is neither followed nor removed",
              "move it elsewhere, or give another destination");
}

Place Place::held(const Place& folder) {
  const NameAt at(folder);
  FileDescriptor opened = at.open(O_RDONLY | O_DIRECTORY);
  if (!opened.is_open() && folder.is_held()) throw_no_folder(folder.path());
  if (!opened.is_open()) throw_errno(folder.path().string(), "open the folder", errno);
  Place place(folder.path());
  place.holder_ = std::make_shared<const FileDescriptor>(std::move(opened));
  return place;
}

Place Place::operator/(const fs::path& below) const {
  Place place(*this);
  place.path_ /= below;
  if (is_held()) place.below_ /= below;
  return place;
}

NameAt::NameAt(const Place& place) : folder_(place.holder_) {
  if (!place.is_held()) {
    name_ = place.path_.string();
    return;
  }
  no_follow_ = O_NOFOLLOW;
  fs::path shown = place.path_;
  for (auto part = place.below_.begin(); part != place.below_.end(); ++part) {
    shown = shown.parent_path();
  }
  for (const fs::path& part : place.below_.parent_path()) enter(part, shown /= part);
  name_ = place.below_.empty() ? "." : place.below_.filename().string();
}

int NameAt::folder() const { return folder_ ? folder_->get() : AT_FDCWD; }

void NameAt::enter(const fs::path& name, const fs::path& shown) {
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const int fd =
      uninterrupted([&] { return system_calls().openat(folder(), name.c_str(), kFlags, 0); });
  if (fd < 0) throw_no_folder(shown);
  folder_ = std::make_shared<const FileDescriptor>(fd);
}

FileDescriptor NameAt::open(int flags) const {
  return FileDescriptor(uninterrupted([&] {
    return system_calls().openat(folder(), path(), flags | O_CLOEXEC | no_follow_, 0666);
  }));
}

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
  const Place kAlwaysThere(fs::path("/"));
  while (kept_.size() < kCount) {
    kept_.push_back(NameAt(kAlwaysThere).open(O_PATH | O_DIRECTORY));
    if (!kept_.back().is_open()) throw_errno({}, "keep a file descriptor in reserve", errno);
  }
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
  FileDescriptor descriptor = at.open(O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!descriptor.is_open()) throw_errno(name, "open", errno);
  return File(std::move(descriptor), std::move(name));
}

File File::create(const Place& place, uint64_t count_bytes) {
  return File(open_with(place, O_CREAT | O_EXCL, "create", count_bytes), place.path().string());
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

OutputFile::OutputFile(const Place& place, uint64_t count_bytes, Use use)
    : descriptor_(open_output(place, count_bytes, use)),
      name_(place.path().string()),
      size_bytes_(count_bytes),
      is_long_(is_written_in_blocks(count_bytes, use)),
      is_too_long_(use == Use::Closed) {
  // O_DIRECT is set after the creation: open() would leave a file behind where it is refused.
  if (is_long_) is_direct_ = system_calls().set_flags(descriptor_.get(), O_DIRECT) == 0;
}

void OutputFile::write_through_the_cache() {
  if (system_calls().set_flags(descriptor_.get(), 0) != 0) {
    throw_errno(name_, "turn off direct I/O", errno);
  }
  is_direct_ = false;
}

void OutputFile::write_at(uint64_t offset_bytes, std::span<const std::byte> blocks) {
  if (offset_bytes + blocks.size() > size_bytes_) {
    is_too_long_ = is_too_long_ || is_long_;
    if (!is_long_) blocks = blocks.first(size_bytes_ - offset_bytes);
  }
  while (!blocks.empty()) {
    const bool was_direct = is_direct_;
    const ssize_t count = system_calls().pwrite(descriptor_.get(), blocks.data(),
                                                std::min(blocks.size(), kCallBytesMax),
                                                static_cast<off_t>(offset_bytes));
    if (count < 0 && errno == EINTR) continue;
    // Larger blocks are wanted than ours, or an earlier write ended within one.
    if (count < 0 && errno == EINVAL && was_direct) {
      write_through_the_cache();
      continue;
    }
    if (count < 0) throw_errno(name_, "write", errno);
    if (count == 0) throw Error(ErrorCode::IoFailure, {name_, offset_bytes}, "wrote 0 bytes");
    offset_bytes += static_cast<uint64_t>(count);
    blocks = blocks.subspan(static_cast<size_t>(count));
  }
}

void OutputFile::finish() {
  if (!is_too_long_) return;
  const auto size = static_cast<off_t>(size_bytes_);
  if (uninterrupted([&] { return system_calls().ftruncate(descriptor_.get(), size); }) != 0) {
    throw_errno(name_, "set the file size", errno);
  }
}

DropBehind::DropBehind(const File& file) : size_bytes_(file.size_bytes()) {
  if (file.size_bytes() < kExtentBytes || !is_hardly_cached(file)) return;
  file.drop_cached(0, size_bytes_);
  passed_bytes_ =
      std::vector<std::atomic<uint64_t>>((file.size_bytes() + kExtentBytes - 1) / kExtentBytes);
}

void DropBehind::passed(const File& file, uint64_t offset_bytes, uint64_t count_bytes) {
  if (passed_bytes_.empty()) return;
  const uint64_t end_bytes = std::min(offset_bytes + count_bytes, size_bytes_);
  while (offset_bytes < end_bytes) {
    const uint64_t extent = offset_bytes / kExtentBytes;
    const uint64_t start_bytes = extent * kExtentBytes;
    const uint64_t extent_bytes = std::min(kExtentBytes, size_bytes_ - start_bytes);
    const uint64_t part_bytes = std::min(end_bytes, start_bytes + kExtentBytes) - offset_bytes;
    const uint64_t before_bytes = passed_bytes_[extent].fetch_add(part_bytes);
    // What lies between payloads need not be read at all. More than that would be read again.
    const uint64_t most_bytes = extent_bytes - extent_bytes / 128;
    if (before_bytes < most_bytes && before_bytes + part_bytes >= most_bytes) {
      file.drop_cached(start_bytes, extent_bytes);
    }
    offset_bytes += part_bytes;
  }
}

}  // namespace ckpt

#include "io/system_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "io/file.h"

namespace ckpt {
namespace {

std::atomic<SystemCalls*> installed = nullptr;

}  // namespace

int SystemCalls::openat(int folder, const char* path, int flags, mode_t mode) {
  return ::openat(folder, path, flags, mode);
}
int SystemCalls::openat2(int folder, const char* path, const open_how& how) {
  return static_cast<int>(::syscall(SYS_openat2, folder, path, &how, sizeof(how)));
}
int SystemCalls::close(int file) { return ::close(file); }
int SystemCalls::set_flags(int file, int flags) { return ::fcntl(file, F_SETFL, flags); }

ssize_t SystemCalls::read(int file, void* out, size_t count_bytes) {
  return ::read(file, out, count_bytes);
}
ssize_t SystemCalls::pread(int file, void* out, size_t count_bytes, off_t offset_bytes) {
  return ::pread(file, out, count_bytes, offset_bytes);
}
ssize_t SystemCalls::pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) {
  return ::pwrite(file, bytes, count_bytes, offset_bytes);
}
int SystemCalls::fallocate(int file, int mode, off_t offset_bytes, off_t count_bytes) {
  return ::fallocate(file, mode, offset_bytes, count_bytes);
}
int SystemCalls::ftruncate(int file, off_t count_bytes) { return ::ftruncate(file, count_bytes); }
int SystemCalls::fsync(int file) { return ::fsync(file); }
int SystemCalls::posix_fadvise(int file, off_t offset_bytes, off_t count_bytes, int advice) {
  return ::posix_fadvise(file, offset_bytes, count_bytes, advice);
}
int SystemCalls::is_cached(int file, off_t offset_bytes) {
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  const auto length = static_cast<size_t>(page_bytes);
  const off_t start_bytes = offset_bytes - offset_bytes % page_bytes;
  void* const page = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file, start_bytes);
  if (page == MAP_FAILED) return -1;
  unsigned char state = 1;
  const int result = ::mincore(page, length, &state);
  ::munmap(page, length);
  return result == 0 ? state & 1 : -1;
}
int SystemCalls::clone(int target, int source) { return ::ioctl(target, FICLONE, source); }

int SystemCalls::fstat(int file, struct stat& status) { return ::fstat(file, &status); }
int SystemCalls::fstatat(int folder, const char* path, struct stat& status, int flags) {
  return ::fstatat(folder, path, &status, flags);
}
int SystemCalls::statvfs(const char* path, struct statvfs& status) {
  return ::statvfs(path, &status);
}

int SystemCalls::realpath(const char* path, std::string& resolved) {
  const auto release = [](char* text) { std::free(text); };
  const std::unique_ptr<char, decltype(release)> text(::realpath(path, nullptr), release);
  if (!text) return -1;
  resolved = text.get();
  return 0;
}

int SystemCalls::list(int folder, std::vector<std::string>& names) {
  // A descriptor of its own: readdir() moves the position that duplicates would share.
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return -1;
  const auto close_stream = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close_stream)> stream(::fdopendir(own), close_stream);
  if (!stream) {
    ::close(own);
    return -1;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return errno == 0 ? 0 : -1;
}

int SystemCalls::mkdirat(int folder, const char* path, mode_t mode) {
  return ::mkdirat(folder, path, mode);
}
int SystemCalls::unlinkat(int folder, const char* path, int flags) {
  return ::unlinkat(folder, path, flags);
}
int SystemCalls::linkat(Name source, Name target) {
  return ::linkat(source.folder, source.path, target.folder, target.path, 0);
}
int SystemCalls::renameat2(Name source, Name target, unsigned flags) {
  return ::renameat2(source.folder, source.path, target.folder, target.path, flags);
}
int SystemCalls::flock(int file, int operation) { return ::flock(file, operation); }

int SystemCalls::fsetxattr(int file, const char* name, const std::string& value) {
  return ::fsetxattr(file, name, value.data(), value.size(), 0);
}
ssize_t SystemCalls::getxattr(const char* path, const char* name, std::string& value) {
  return ::getxattr(path, name, value.data(), value.size());
}

SystemCalls& system_calls() {
  static SystemCalls real;
  SystemCalls* calls = installed.load(std::memory_order_acquire);
  return calls != nullptr ? *calls : real;
}

InstalledSystemCalls::InstalledSystemCalls(SystemCalls& calls)
    : before_(installed.exchange(&calls)) {}
InstalledSystemCalls::~InstalledSystemCalls() { installed = before_; }

// proc(5): the second number in /proc/self/statm is the resident set, in pages.
uint64_t resident_bytes() {
  const FileDescriptor file(
      system_calls().openat(AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC, 0));
  if (!file.is_open()) return 0;
  char buffer[256];
  const ssize_t count = system_calls().pread(file.get(), buffer, sizeof(buffer), 0);
  if (count <= 0) return 0;
  const std::string_view text(buffer, static_cast<size_t>(count));
  const size_t second = text.find(' ') + 1;
  uint64_t pages = 0;
  std::from_chars(text.data() + second, text.data() + text.size(), pages);
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace ckpt

#pragma once

struct open_how;
struct statvfs;

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ckpt {

// Every call that libckpt makes to the operating system about files, and nothing else: arguments,
// results and errno are the system's own. Members make the real calls; tests install others, to
// fail any of them and to see what a loss of power would leave. Safe to use from many threads.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  // `folder`: an open one that `path` is taken from, or AT_FDCWD.
  virtual int openat(int folder, const char* path, int flags, mode_t mode);
  virtual int openat2(int folder, const char* path, const open_how& how);
  virtual int close(int file);
  virtual int set_flags(int file, int flags);  // fcntl(F_SETFL)

  virtual ssize_t read(int file, void* out, size_t count_bytes);
  virtual ssize_t pread(int file, void* out, size_t count_bytes, off_t offset_bytes);
  virtual ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes);
  virtual int fallocate(int file, int mode, off_t offset_bytes, off_t count_bytes);
  virtual int ftruncate(int file, off_t count_bytes);
  virtual int fsync(int file);
  virtual int posix_fadvise(int file, off_t offset_bytes, off_t count_bytes, int advice);
  // mmap() and mincore() of the page at this place: 1, 0 or -1.
  virtual int is_cached(int file, off_t offset_bytes);
  virtual int clone(int target, int source);  // ioctl(FICLONE): shares the source's blocks

  virtual int fstat(int file, struct stat& status);
  virtual int fstatat(int folder, const char* path, struct stat& status, int flags);
  virtual int statvfs(const char* path, struct statvfs& status);
  virtual int realpath(const char* path, std::string& resolved);
  // All of readdir(), without "." and "..". Leaves `folder` open.
  virtual int list(int folder, std::vector<std::string>& names);

  virtual int mkdirat(int folder, const char* path, mode_t mode);
  virtual int unlinkat(int folder, const char* path, int flags);  // AT_REMOVEDIR: rmdir()
  struct Name {
    int folder;
    const char* path;
  };
  virtual int linkat(Name source, Name target);
  virtual int renameat2(Name source, Name target, unsigned flags);
  virtual int flock(int file, int operation);
  virtual int fsetxattr(int file, const char* name, const std::string& value);
  virtual ssize_t getxattr(const char* path, const char* name, std::string& value);  // in its size
};

// Those that are installed: the real ones, unless a test says otherwise.
SystemCalls& system_calls();

// Repeats a call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Installs other calls for a scope. The process has one set; scopes may nest, not overlap.
class InstalledSystemCalls {
 public:
  explicit InstalledSystemCalls(SystemCalls& calls);
  InstalledSystemCalls(const InstalledSystemCalls&) = delete;
  InstalledSystemCalls& operator=(const InstalledSystemCalls&) = delete;
  ~InstalledSystemCalls();

 private:
  SystemCalls* before_;
};

// Resident memory of this process, in bytes; 0 where the system does not say.
uint64_t resident_bytes();

}  // namespace ckpt

#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "io/system_calls.h"

namespace test {

// What happens to one call.
struct Fault {
  enum class Kind : uint8_t {
    None,
    Fails,         // with `error_number`, nothing done
    FailsForGood,  // and so does every call after it: a device that is gone
    Short,         // a read or write of half of what was asked for
  };
  Kind kind = Kind::None;
  uint64_t number = 0;  // of the call, from 0
  int error_number = EIO;
};

// The real calls, but for one, and without waiting for the device. For conversions on one thread,
// where the same calls come in the same order each time.
class FaultyCalls final : public ckpt::SystemCalls {
 public:
  FaultyCalls() = default;
  explicit FaultyCalls(Fault fault) : fault_(fault) {}
  bool has_exchange = true;  // false: as a file system without RENAME_EXCHANGE

  uint64_t count() const { return names_.size(); }
  const std::string& name(uint64_t number) const { return names_[number]; }
  bool can_be_short(uint64_t number) const {
    return names_[number] == "pread" || names_[number] == "pwrite";
  }
  bool has_struck() const { return has_struck_; }

  int openat(int folder, const char* path, int flags, mode_t mode) override {
    return fails("open") ? -1 : SystemCalls::openat(folder, path, flags, mode);
  }
  int openat2(int folder, const char* path, const open_how& how) override {
    return fails("openat2") ? -1 : SystemCalls::openat2(folder, path, how);
  }
  int close(int file) override {
    const bool failed = fails("close");  // Linux closes in any case
    const int result = SystemCalls::close(file);
    if (failed) errno = fault_.error_number;
    return failed ? -1 : result;
  }
  ssize_t read(int file, void* out, size_t count_bytes) override {
    return fails("read") ? -1 : SystemCalls::read(file, out, moved_bytes(count_bytes));
  }
  ssize_t pread(int file, void* out, size_t count_bytes, off_t offset_bytes) override {
    if (fails("pread")) return -1;
    return SystemCalls::pread(file, out, moved_bytes(count_bytes), offset_bytes);
  }
  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override {
    if (fails("pwrite")) return -1;
    return SystemCalls::pwrite(file, bytes, moved_bytes(count_bytes), offset_bytes);
  }
  int fallocate(int file, int mode, off_t offset_bytes, off_t count_bytes) override {
    if (fails("fallocate")) return -1;
    return SystemCalls::fallocate(file, mode, offset_bytes, count_bytes);
  }
  int ftruncate(int file, off_t count_bytes) override {
    return fails("ftruncate") ? -1 : SystemCalls::ftruncate(file, count_bytes);
  }
  int fsync(int) override { return fails("fsync") ? -1 : 0; }
  int posix_fadvise(int file, off_t offset_bytes, off_t count_bytes, int advice) override {
    if (fails("posix_fadvise")) return fault_.error_number;
    return SystemCalls::posix_fadvise(file, offset_bytes, count_bytes, advice);
  }
  int is_cached(int file, off_t offset_bytes) override {
    return fails("is_cached") ? -1 : SystemCalls::is_cached(file, offset_bytes);
  }
  int clone(int target, int source) override {
    return fails("clone") ? -1 : SystemCalls::clone(target, source);
  }
  int set_flags(int file, int flags) override {
    return fails("set_flags") ? -1 : SystemCalls::set_flags(file, flags);
  }
  int fstat(int file, struct stat& status) override {
    return fails("fstat") ? -1 : SystemCalls::fstat(file, status);
  }
  int fstatat(int folder, const char* path, struct stat& status, int flags) override {
    return fails("stat") ? -1 : SystemCalls::fstatat(folder, path, status, flags);
  }
  int statvfs(const char* path, struct statvfs& status) override {
    return fails("statvfs") ? -1 : SystemCalls::statvfs(path, status);
  }
  int realpath(const char* path, std::string& resolved) override {
    return fails("realpath") ? -1 : SystemCalls::realpath(path, resolved);
  }
  int list(int folder, std::vector<std::string>& names) override {
    return fails("list") ? -1 : SystemCalls::list(folder, names);
  }
  int mkdirat(int folder, const char* path, mode_t mode) override {
    return fails("mkdir") ? -1 : SystemCalls::mkdirat(folder, path, mode);
  }
  int unlinkat(int folder, const char* path, int flags) override {
    const bool is_folder = (flags & AT_REMOVEDIR) != 0;
    return fails(is_folder ? "rmdir" : "unlink") ? -1 : SystemCalls::unlinkat(folder, path, flags);
  }
  int linkat(Name source, Name target) override {
    return fails("link") ? -1 : SystemCalls::linkat(source, target);
  }
  int renameat2(Name source, Name target, unsigned flags) override {
    if (fails(flags == 0 ? "rename" : "renameat2")) return -1;
    if (!has_exchange && (flags & RENAME_EXCHANGE) != 0) {
      errno = EINVAL;
      return -1;
    }
    return SystemCalls::renameat2(source, target, flags);
  }
  int fsetxattr(int file, const char* name, const std::string& value) override {
    return fails("setxattr") ? -1 : SystemCalls::fsetxattr(file, name, value);
  }
  ssize_t getxattr(const char* path, const char* name, std::string& value) override {
    return fails("getxattr") ? -1 : SystemCalls::getxattr(path, name, value);
  }
  int flock(int file, int operation) override {
    return fails("flock") ? -1 : SystemCalls::flock(file, operation);
  }

 private:
  bool fails(const char* name) {
    const uint64_t number = names_.size();
    names_.emplace_back(name);
    is_short_ = fault_.kind == Fault::Kind::Short && number == fault_.number;
    const bool strikes = (fault_.kind == Fault::Kind::Fails && number == fault_.number) ||
                         (fault_.kind == Fault::Kind::FailsForGood && number >= fault_.number);
    has_struck_ = has_struck_ || strikes || is_short_;
    if (strikes) errno = fault_.error_number;
    return strikes;
  }
  size_t moved_bytes(size_t count_bytes) const {
    return is_short_ ? (count_bytes + 1) / 2 : count_bytes;
  }

  Fault fault_;
  std::vector<std::string> names_;
  bool is_short_ = false;
  bool has_struck_ = false;
};

}  // namespace test

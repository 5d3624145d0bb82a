#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "io/system_calls.h"

namespace ckpt {

class FileDescriptor;

// Where a file or folder is. Either a path, which the system resolves at each call, links included;
// or a name below a folder that is held open: then no link is followed, neither at the end nor on
// the way, and nothing that is renamed or replaced above that folder counts.
class Place {
 public:
  Place(std::filesystem::path path) : path_(std::move(path)) {}

  // The folder at a place, held open from now on. Throws as throw_errno(), and where a link or
  // anything else stands in place of a folder below a held one.
  static Place held(const Place& folder);

  Place operator/(const std::filesystem::path& below) const;
  const std::filesystem::path& path() const { return path_; }  // as errors show it
  bool is_held() const { return holder_ != nullptr; }

 private:
  friend class NameAt;
  std::filesystem::path path_;
  std::shared_ptr<const FileDescriptor> holder_;
  std::filesystem::path below_;  // of it; empty: the folder itself
};

// What system calls take of a place: an open folder and a name in it. Folders between a held folder
// and the name are opened one by one. Throws Error, where one of them cannot be: NotFound where it
// is absent, AlreadyExists where it is a link or no folder.
class NameAt {
 public:
  explicit NameAt(const Place& place);

  int folder() const;
  const char* path() const { return name_.c_str(); }
  SystemCalls::Name name() const { return {folder(), path()}; }
  // Not open where the system refuses it: errno says why. Below a held folder no link is followed.
  FileDescriptor open(int flags) const;

 private:
  void enter(const std::filesystem::path& name, const std::filesystem::path& shown);

  std::shared_ptr<const FileDescriptor> folder_;
  std::string name_;
  int no_follow_ = 0;  // O_NOFOLLOW, where links are not followed
};

// Something that is not ours is where our files go. Throws AlreadyExists.
[[noreturn]] void refuse_foreign(const std::filesystem::path& path, const std::string& what);

// Throws Error for the errno of a failed system call: NotFound for ENOENT and ENOTDIR,
// AlreadyExists for EEXIST, IoFailure for the rest. `doing` completes "cannot ...".
[[noreturn]] void throw_errno(const std::string& file, std::string_view doing, int error_number);

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Descriptors for what has to succeed when the process can open nothing more. Throws IoFailure.
class DescriptorReserve {
 public:
  DescriptorReserve();
  void give_back() { kept_.clear(); }

 private:
  std::vector<FileDescriptor> kept_;
};

// What `look` gives; nullopt where it throws NotFound: another process may have removed it since.
template <typename Found, typename Look>
std::optional<Found> unless_gone(const Look& look) {
  try {
    return look();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NotFound) throw;
    return std::nullopt;
  }
}

FileState file_state(const struct stat& status);

// A regular file. Reads and writes go to stated places, so that threads can share it.
class File : public OpenedFile {
 public:
  // `name` is what errors call it; default: the path. Throws NotFound, IoFailure; anything but
  // a regular file (a folder, a pipe, a device) is refused as IoFailure.
  static File open(const Place& place, std::string name = {});
  // Creates it and reserves room for so many bytes, so that ENOSPC comes now rather than in the
  // middle; the file has that length. Throws AlreadyExists, IoFailure.
  static File create(const Place& place, uint64_t count_bytes);
  // Takes over a descriptor that was opened for reading.
  File(FileDescriptor descriptor, std::string name);

  uint64_t size_bytes() const override { return state_.count_bytes; }
  const FileState& state() const override { return state_; }
  const std::string& file_name() const override { return name_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override;

  void write_at(uint64_t offset_bytes, std::span<const std::byte> bytes) const;
  // Whether the system keeps the page at this place in memory; yes, where it does not say.
  bool is_cached(uint64_t offset_bytes) const;
  // Asks the system to forget what it keeps in memory of a range that is on the device.
  void drop_cached(uint64_t offset_bytes, uint64_t count_bytes) const;

 private:
  FileDescriptor descriptor_;
  std::string name_;
  FileState state_;
};

// A file in the making. Safe to write from many threads.
class FileSink {
 public:
  static constexpr uint64_t kBlockBytes = 4096;  // every device's block size divides it

  virtual ~FileSink() = default;
  // `offset_bytes` and the address of `blocks` are multiples of kBlockBytes, and so is the length:
  // the last block is filled up with anything. Not so the offset in a file that is Closed.
  virtual void write_at(uint64_t offset_bytes, std::span<const std::byte> blocks) = 0;
  // To be called once, after all writes.
  virtual void finish() = 0;
};

// A new file that is written in long blocks past the page cache (O_DIRECT), which takes half the
// time and leaves nothing to be flushed (docs/performance.md). Short files, and all files where the
// file system refuses that, go through the page cache.
class OutputFile final : public FileSink {
 public:
  enum class Use : uint8_t {
    Whole,   // a new file
    Shared,  // several processes write it: made by the first
    Closed,  // what others have written gets its end
  };
  // The file has `count_bytes` from the beginning. Throws AlreadyExists, IoFailure.
  OutputFile(const Place& place, uint64_t count_bytes, Use use = Use::Whole);

  void write_at(uint64_t offset_bytes, std::span<const std::byte> blocks) override;
  void finish() override;  // cuts off what fills up the file's last block

 private:
  void write_through_the_cache();

  FileDescriptor descriptor_;
  std::string name_;
  uint64_t size_bytes_;
  bool is_long_;  // written in whole blocks
  std::atomic<bool> is_too_long_ = false;
  std::atomic<bool> is_direct_ = false;
};

// For who reads a file once, in whatever order: nearly all of what was not
// in the system's page cache before is not in it afterwards, and pushes nothing else out of it
// (docs/why/reading.md). A file that was there stays; single pages of one leave, before it is read,
// since each cuts what the system reads ahead. Only hints: reading is right without them.
class DropBehind {
 public:
  // Looks whether the file is in the page cache: before it is read.
  explicit DropBehind(const File& file);

  // Takes note of bytes that were read. An extent of the file leaves the page cache when most of it
  // has passed, once. Thread-safe. `file`: the same, maybe opened again, maybe longer by now.
  void passed(const File& file, uint64_t offset_bytes, uint64_t count_bytes);

 private:
  uint64_t size_bytes_;
  std::vector<std::atomic<uint64_t>> passed_bytes_;  // of each extent; none: nothing is dropped
};

}  // namespace ckpt

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "io/file.h"

namespace ckpt {

// A new file that is written in long blocks past the page cache (O_DIRECT), which takes half the
// time and leaves nothing to be flushed (docs/performance.md). Short files, and all files where the
// file system refuses that, go through the page cache. Safe to write from many threads.
class OutputFile {
 public:
  static constexpr uint64_t kBlockBytes = 4096;  // every device's block size divides it

  enum class Use : uint8_t {
    Whole,   // a new file
    Shared,  // several processes write it: made by the first
    Closed,  // what others have written gets its end
  };
  // The file has `count_bytes` from the beginning. Throws AlreadyExists, IoFailure.
  OutputFile(const Place& place, uint64_t count_bytes, Use use = Use::Whole);

  // `offset_bytes` and the address of `blocks` are multiples of kBlockBytes, and so is the length:
  // the last block is filled up with anything. Not so the offset in a file that is Closed.
  void write_at(uint64_t offset_bytes, std::span<const std::byte> blocks);
  // Cuts off what fills up the file's last block. To be called once, after all writes.
  void finish();

 private:
  void write_through_the_cache();

  FileDescriptor descriptor_;
  std::string name_;
  uint64_t size_bytes_;
  bool is_long_;  // written in whole blocks
  std::atomic<bool> is_too_long_ = false;
  std::atomic<bool> is_direct_ = false;
};

}  // namespace ckpt

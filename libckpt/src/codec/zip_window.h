#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/random_access.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"

namespace ckpt::zip {

// Reads through one buffer, so that end records and the headers of small members, which lie close
// together, cost few system calls.
class Window {
 public:
  Window(const RandomAccess& file, ByteRange archive) : file_(file), archive_(archive) {}

  // `count_bytes` bytes of the archive; `ahead_bytes` more are read where there are as many.
  ByteReader at(uint64_t offset_bytes, uint64_t count_bytes, uint64_t ahead_bytes = 0) {
    if (!fits(offset_bytes, count_bytes, archive_.count_bytes)) {
      fail(std::min(offset_bytes, archive_.count_bytes), "the zip archive ends early");
    }
    const bool held = offset_bytes >= held_.offset_bytes &&
                      fits(offset_bytes - held_.offset_bytes, count_bytes, held_.count_bytes);
    if (!held) load(offset_bytes, count_bytes, ahead_bytes);
    const uint64_t start = offset_bytes - held_.offset_bytes;
    return ByteReader(std::span(buffer_).subspan(start, count_bytes), file_.file_name(),
                      archive_.offset_bytes + offset_bytes);
  }

  [[noreturn]] void fail(uint64_t offset_bytes, std::string problem,
                         ErrorCode code = ErrorCode::Corrupt) const {
    throw Error(code, {file_.file_name(), archive_.offset_bytes + offset_bytes},
                std::move(problem));
  }

  const ByteRange& archive() const { return archive_; }
  bool fills_file() const { return archive_.count_bytes == file_.size_bytes(); }
  std::string file_name() const { return file_.file_name(); }

 private:
  void load(uint64_t offset_bytes, uint64_t count_bytes, uint64_t ahead_bytes) {
    const uint64_t left_bytes = archive_.count_bytes - offset_bytes;
    held_ = {};
    buffer_.resize(std::min(left_bytes, count_bytes + ahead_bytes));
    file_.read_at(archive_.offset_bytes + offset_bytes, buffer_);
    held_ = {offset_bytes, buffer_.size()};
  }

  const RandomAccess& file_;
  ByteRange archive_;
  ByteRange held_;  // within the archive
  std::vector<std::byte> buffer_;
};

}  // namespace ckpt::zip

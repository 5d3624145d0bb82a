#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "base/checked_math.h"
#include "codec/crc32.h"
#include "codec/zip.h"

namespace test {

// A file that is a string.
class MemoryFile final : public ckpt::RandomAccess {
 public:
  explicit MemoryFile(std::string content, std::string name = "memory")
      : content_(std::move(content)), name_(std::move(name)) {}

  uint64_t size_bytes() const override { return content_.size(); }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override {
    if (!ckpt::fits(offset_bytes, out.size(), content_.size())) {
      throw ckpt::Error(ckpt::ErrorCode::Corrupt, {name_, offset_bytes}, "the file ends early");
    }
    if (!out.empty()) std::memcpy(out.data(), content_.data() + offset_bytes, out.size());
  }
  const std::string& file_name() const override { return name_; }

 private:
  std::string content_;
  std::string name_;
};

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Files in memory as a source of payload.
class MemoryPayloads final : public ckpt::PayloadSource {
 public:
  // Adds a file and returns its number.
  uint32_t add_file(std::string content) {
    const auto number = static_cast<uint32_t>(files_.size());
    files_.emplace_back(std::move(content), "source" + std::to_string(number));
    return number;
  }

  // A storage that is a file of its own.
  ckpt::StorageRegion add_storage(std::string content, bool with_crc = true) {
    ckpt::StorageRegion region;
    region.bytes = {0, content.size()};
    if (with_crc) region.crc32 = ckpt::crc32(bytes_of(content));
    region.file = add_file(std::move(content));
    return region;
  }

  // Unwraps an archive by taking its member data/0.
  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    if (region.wrapping == ckpt::Wrapping::None) return {region};
    for (const auto& member : ckpt::zip::read_directory(files_[region.file], region.bytes)) {
      if (member.name.ends_with("/data/0")) {
        return {{.file = region.file, .crc32 = member.crc32, .bytes = member.data}};
      }
    }
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {file_name(region.file)}, "no storage in it");
  }

  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    reads_ += 1;
    longest_read_bytes_ = std::max<uint64_t>(longest_read_bytes_, out.size());
    if (before_read) before_read();
    files_[located.file].read_at(located.bytes.offset_bytes + offset_bytes, out);
  }

  std::string file_name(uint32_t file) const override { return files_[file].file_name(); }

  std::function<void()> before_read;  // may throw: fault injection
  uint64_t reads() const { return reads_; }
  uint64_t longest_read_bytes() const { return longest_read_bytes_; }

 private:
  std::vector<MemoryFile> files_;
  mutable std::atomic<uint64_t> reads_ = 0;
  mutable std::atomic<uint64_t> longest_read_bytes_ = 0;
};

}  // namespace test

#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include <ckpt/checkpoint.h>

namespace ckpt {

// A source whose bytes are read once. Counts them.
class PassingSource final : public PayloadSource {
 public:
  explicit PassingSource(const PayloadSource& source) : source_(source) {}

  LocatedRegion locate(const StorageRegion& region) const override {
    return source_.locate(region);
  }
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    source_.read_once(located, offset_bytes, out);
    read_bytes_.fetch_add(out.size(), std::memory_order_relaxed);
  }
  std::string file_name(uint32_t file) const override { return source_.file_name(file); }

  uint64_t count_bytes() const { return read_bytes_.load(); }

 private:
  const PayloadSource& source_;
  mutable std::atomic<uint64_t> read_bytes_ = 0;
};

}  // namespace ckpt

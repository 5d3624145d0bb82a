#include "io/drop_behind.h"

#include <algorithm>

namespace ckpt {
namespace {

// Larger than what the kernel reads ahead, so that few of its folios lie across a border.
constexpr uint64_t kExtentBytes = uint64_t{32} << 20;
constexpr uint64_t kProbes = 64;

// What lies between payloads need not be read at all. More than that would be read again.
uint64_t most_of(uint64_t count_bytes) { return count_bytes - count_bytes / 128; }

bool is_hardly_cached(const File& file) {
  uint64_t cached = 0;
  for (uint64_t probe = 0; probe < kProbes; ++probe) {
    if (file.is_cached(file.size_bytes() / kProbes * probe)) ++cached;
  }
  return cached <= kProbes / 8;
}

}  // namespace

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
    const uint64_t most_bytes = most_of(extent_bytes);
    if (before_bytes < most_bytes && before_bytes + part_bytes >= most_bytes) {
      file.drop_cached(start_bytes, extent_bytes);
    }
    offset_bytes += part_bytes;
  }
}

}  // namespace ckpt

#include "read/expected_entries.h"

#include <algorithm>
#include <tuple>

namespace ckpt {

namespace {

std::pair<uint32_t, uint64_t> place_of(const StorageRegion& region) {
  return {region.file, region.bytes.offset_bytes};
}

std::pair<uint32_t, uint64_t> place_of_entry(const ExpectedEntries::Entry& entry) {
  return place_of(entry.chunk->region);
}

}  // namespace

void ExpectedEntries::build() const {
  for (const TensorEntry& tensor : catalog_.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      if (chunk.region.wrapping != Wrapping::None) entries_.push_back({&tensor, &chunk});
    }
  }
  std::ranges::sort(entries_, {}, place_of_entry);
}

const ExpectedEntries::Entry* ExpectedEntries::find(const StorageRegion& region) const {
  std::call_once(built_, [this] { build(); });
  const auto found = std::ranges::lower_bound(entries_, place_of(region), {}, place_of_entry);
  return found != entries_.end() && place_of_entry(*found) == place_of(region) ? &*found : nullptr;
}

}  // namespace ckpt

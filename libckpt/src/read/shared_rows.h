#pragma once

#include <cstddef>
#include <cstdint>

#include "read/payload_reader.h"
#include "read/shared_blocks.h"

namespace ckpt {

// A run is read by itself from this length on.
inline constexpr uint64_t kDirectRunBytes = 64 << 10;
// Holes of at most this length are cheaper to read than to skip with another system call.
inline constexpr uint64_t kHoleBytesMax = 64 << 10;

// A copy out of rows that others want, too.
struct SharedCopy {
  const WatchedSource& source;
  const StorageRegion& located;
  uint64_t payload_start_bytes;  // in the storage; rows are counted from here
  ElementMover& mover;
  StridedRead whole;

  uint64_t element_bytes() const { return mover.stored_bytes(); }
};

// Reads a part of a copy of which others want the same rows, or the same columns of them, in blocks
// of whole rows that are the same for all. False where such a copy is better read by itself, or
// cannot be shared just now: `out` may then hold some of it. `out`: at the target's offset.
bool read_shared_rows(SharedBlocks& blocks, const SharedCopy& copy, const StridedRead& part,
                      std::byte* out);

}  // namespace ckpt

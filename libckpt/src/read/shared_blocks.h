#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>

#include <ckpt/catalog.h>

#include "read/payload_reader.h"

namespace ckpt {

// Blocks of storages that several readers want at about the same time, each for parts of its own:
// a block is read by who comes first and kept until others were wanted since. Safe to use from many
// threads: the mutex guards the slots, whose memory only who loads a block writes, and nobody takes
// while it has users.
class SharedBlocks {
 public:
  // All blocks together take no more memory than that; less than a block: nothing is kept.
  explicit SharedBlocks(uint64_t memory_bytes, uint64_t block_bytes_max = 1 << 20)
      : block_bytes_max_(block_bytes_max), slots_max_(memory_bytes / block_bytes_max) {}

  uint64_t block_bytes_max() const { return block_bytes_max_; }

  // Of the blocks of these bytes of a file the one that was wanted last; nullopt where none is
  // kept. Who may begin anywhere begins there, and shares what the others go on to.
  std::optional<uint64_t> newest_offset(uint32_t file, ByteRange bytes);

  // Calls `use` with these bytes of a storage, at most a block's, once they are there. False
  // where all slots are in use. Readers share a block if they want the same bytes.
  bool with_block(const WatchedSource& source, const StorageRegion& located, ByteRange part,
                  const std::function<void(std::span<const std::byte>)>& use);

 private:
  struct Slot {
    explicit Slot(uint64_t memory_bytes) : memory(memory_bytes) {}

    uint32_t file = 0;
    ByteRange bytes;  // of the file; empty: holds nothing
    bool is_loading = false;
    unsigned users = 0;
    ScratchBuffer memory;
  };

  std::list<Slot>::iterator take(uint32_t file, ByteRange bytes);
  void load(Slot& slot, const WatchedSource& source, const StorageRegion& located, ByteRange part);

  const uint64_t block_bytes_max_, slots_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Slot> slots_;  // the ones that were wanted last stand in front
};

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

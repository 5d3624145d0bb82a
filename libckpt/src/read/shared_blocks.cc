#include "read/shared_blocks.h"

#include <algorithm>

namespace ckpt {

// The block's slot, or one that nobody uses, made new or taken from the block that was wanted
// longest ago; end() where there is none.
std::list<SharedBlocks::Slot>::iterator SharedBlocks::take(uint32_t file, ByteRange bytes) {
  auto found = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.file == file && slot.bytes == bytes; });
  if (found == slots_.end() && slots_.size() < slots_max_) {
    found = slots_.emplace(slots_.end(), block_bytes_max_);
  }
  for (auto slot = slots_.end(); found == slots_.end() && slot != slots_.begin();) {
    if ((--slot)->users == 0) found = slot;
  }
  if (found != slots_.end()) slots_.splice(slots_.begin(), slots_, found);
  return found;
}

void SharedBlocks::load(Slot& slot, const WatchedSource& source, const StorageRegion& located,
                        ByteRange part) {
  const auto finish = [&](ByteRange bytes) {
    const std::scoped_lock lock(mutex_);
    slot.bytes = bytes;
    slot.is_loading = false;
    changed_.notify_all();
  };
  try {
    read_in_slices(source, located, part.offset_bytes, slot.memory.bytes().first(part.count_bytes));
  } catch (...) {
    finish({});  // who waits for it tries it again, and fails by itself
    throw;
  }
  finish(slot.bytes);
}

std::optional<uint64_t> SharedBlocks::newest_offset(uint32_t file, ByteRange bytes) {
  const std::scoped_lock lock(mutex_);
  for (const Slot& slot : slots_) {
    const bool is_within = slot.file == file && slot.bytes.count_bytes != 0 &&
                           slot.bytes.offset_bytes >= bytes.offset_bytes &&
                           slot.bytes.end_bytes() <= bytes.end_bytes();
    if (is_within) return slot.bytes.offset_bytes;
  }
  return std::nullopt;
}

bool SharedBlocks::with_block(const WatchedSource& source, const StorageRegion& located,
                              ByteRange part,
                              const std::function<void(std::span<const std::byte>)>& use) {
  const ByteRange bytes = {located.bytes.offset_bytes + part.offset_bytes, part.count_bytes};
  std::unique_lock lock(mutex_);
  const auto slot = take(located.file, bytes);
  if (slot == slots_.end()) return false;
  ++slot->users;  // keeps the slot from being taken for another block
  const auto leave = [this](Slot* used) {
    const std::scoped_lock again(mutex_);
    --used->users;
  };
  const std::unique_ptr<Slot, decltype(leave)> user(&*slot, leave);
  changed_.wait(lock, [&] { return !slot->is_loading; });
  const bool is_there = slot->file == located.file && slot->bytes == bytes;
  if (!is_there) {
    slot->file = located.file;
    slot->bytes = bytes;
    slot->is_loading = true;
  }
  lock.unlock();
  if (!is_there) load(*slot, source, located, part);
  use(slot->memory.bytes().first(part.count_bytes));
  return true;
}

}  // namespace ckpt

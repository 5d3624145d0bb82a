#include "read/shared_blocks.h"

#include <algorithm>
#include <vector>

#include "base/checked_math.h"
#include "read/strided_copy.h"

namespace ckpt {
namespace {

// Rows of a storage, one behind the other, and how many of them make a block.
struct RowGrid {
  ByteRange bytes;  // from the start of the first row
  uint64_t row_bytes = 0;
  uint64_t block_bytes = 0;  // a multiple of that

  ByteRange block_around(uint64_t offset_bytes) const {
    const uint64_t skipped_bytes = (offset_bytes - bytes.offset_bytes) / block_bytes * block_bytes;
    return {bytes.offset_bytes + skipped_bytes,
            std::min(block_bytes, bytes.count_bytes - skipped_bytes)};
  }
};

// Of one row: a run, or elements of it with others between them.
uint64_t row_span_bytes(const StridedDim& dim, uint64_t element_bytes) {
  return source_span({&dim, 1}) * element_bytes;
}
bool is_within(const StridedDim& dim, uint64_t row_bytes, uint64_t element_bytes) {
  return dim.source_stride == 1 || (dim.source_stride * element_bytes < row_bytes &&
                                    row_span_bytes(dim, element_bytes) <= row_bytes);
}

// A single run has rows of one element.
std::optional<RowGrid> grid_of(const SharedCopy& copy, uint64_t block_bytes_max) {
  const StridedRead& whole = copy.whole;
  const uint64_t end_bytes = whole.start_bytes + source_span(whole.dims) * copy.element_bytes();
  if (whole.dims.size() == 1) {
    if (whole.dims[0].source_stride != 1) return std::nullopt;
    return RowGrid{{whole.start_bytes, end_bytes - whole.start_bytes},
                   copy.element_bytes(),
                   block_bytes_max / copy.element_bytes() * copy.element_bytes()};
  }
  const uint64_t run_bytes = row_span_bytes(whole.dims.back(), copy.element_bytes());
  const uint64_t row_bytes = whole.dims.end()[-2].source_stride * copy.element_bytes();
  if (!is_within(whole.dims.back(), row_bytes, copy.element_bytes())) return std::nullopt;
  if (run_bytes >= kDirectRunBytes || row_bytes < run_bytes || row_bytes > block_bytes_max ||
      row_bytes - run_bytes > kHoleBytesMax) {
    return std::nullopt;
  }
  const uint64_t column_bytes = (whole.start_bytes - copy.payload_start_bytes) % row_bytes;
  if (column_bytes + run_bytes > row_bytes) return std::nullopt;
  const uint64_t start_bytes = whole.start_bytes - column_bytes;
  const uint64_t rows_bytes = align_up(end_bytes - start_bytes, row_bytes);
  return RowGrid{{start_bytes, std::min(rows_bytes, copy.located.bytes.count_bytes - start_bytes)},
                 row_bytes,
                 block_bytes_max / row_bytes * row_bytes};
}

// Whether each of its runs lies in one row.
bool keeps_to_rows(std::span<const StridedDim> dims, uint64_t element_bytes, uint64_t row_bytes) {
  return dims.size() == 1 ||
         (row_span_bytes(dims.back(), element_bytes) <= row_bytes &&
          std::ranges::all_of(dims.first(dims.size() - 1), [&](const StridedDim& dim) {
            return dim.source_stride * element_bytes % row_bytes == 0;
          }));
}

// Rows of one block.
struct BlockStep {
  ByteRange block;
  uint64_t at = 0;             // bytes, of the first row
  uint64_t target_offset = 0;  // elements
  uint64_t count = 0;
};

// Of those who want the same blocks, each goes through them from where the others are.
void begin_at_newest(SharedBlocks& blocks, const StorageRegion& located, ByteRange bytes,
                     std::vector<BlockStep>& steps) {
  bytes.offset_bytes += located.bytes.offset_bytes;
  const auto newest = blocks.newest_offset(located.file, bytes);
  if (!newest) return;
  const auto first = std::ranges::find_if(steps, [&](const BlockStep& step) {
    return located.bytes.offset_bytes + step.block.offset_bytes == *newest;
  });
  std::ranges::rotate(steps, first);
}

}  // namespace

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

bool read_shared_rows(SharedBlocks& blocks, const SharedCopy& copy, const StridedRead& part,
                      std::byte* out) {
  const std::optional<RowGrid> grid = grid_of(copy, blocks.block_bytes_max());
  const uint64_t element_bytes = copy.element_bytes();
  if (!grid) return false;
  std::vector<StridedDim> with_run = part.dims;
  if (!is_within(with_run.back(), grid->row_bytes, element_bytes)) {
    with_run.push_back({1, 1, 1});  // a column
  }
  const std::span<const StridedDim> dims = with_run;
  if (!keeps_to_rows(dims, element_bytes, grid->row_bytes)) return false;
  // Row by row, or of a single run element by element: as many as a block has at a time.
  const size_t walked = dims.size() - std::min<size_t>(dims.size(), 2);
  const std::vector<StridedDim> rows(dims.begin() + static_cast<ptrdiff_t>(walked), dims.end());
  const uint64_t inner_bytes = source_span(std::span(rows).subspan(1)) * element_bytes;
  std::vector<BlockStep> steps;
  StridedWalk walk(dims.first(walked));
  do {
    for (uint64_t row = 0; row < rows[0].size; row += steps.back().count) {
      const uint64_t at =
          part.start_bytes + (walk.source_offset() + row * rows[0].source_stride) * element_bytes;
      const ByteRange block = grid->block_around(at);
      const uint64_t fitting =
          1 + (block.end_bytes() - at - inner_bytes) / (rows[0].source_stride * element_bytes);
      steps.push_back({block, at, walk.target_offset() + row * rows[0].target_stride,
                       std::min(rows[0].size - row, fitting)});
    }
  } while (walk.next());
  begin_at_newest(blocks, copy.located, grid->bytes, steps);
  return std::ranges::all_of(steps, [&](const BlockStep& step) {
    return blocks.with_block(
        copy.source, copy.located, step.block, [&](std::span<const std::byte> bytes) {
          std::vector<StridedDim> moved = rows;
          moved[0].size = step.count;
          copy.mover.move(moved, {bytes.data() + (step.at - step.block.offset_bytes),
                                  out + step.target_offset * copy.mover.bytes()});
        });
  });
}

}  // namespace ckpt

#include "read/payload_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <new>

#include <ckpt/error.h>
#include <ckpt/flat_range.h>

#include "base/checked_math.h"
#include "base/text.h"
#include "codec/crc32.h"
#include "read/shared_blocks.h"

namespace ckpt {
namespace {

constexpr std::align_val_t kAlignment{size_t{2} << 20};  // of a huge page
constexpr size_t kElementBytesMax = 16;

// The first byte behind the last element that a chunk can touch; nullopt where that overflows.
std::optional<uint64_t> end_bytes(const Extents& sizes, const Extents& strides,
                                  uint64_t start_bytes, uint64_t element_bytes) {
  std::optional<uint64_t> elements = 1;
  for (size_t d = 0; d < sizes.size() && elements; ++d) {
    if (sizes[d] == 0) return start_bytes;
    const auto reach = checked_mul(sizes[d] - 1, strides[d]);
    elements = reach ? checked_add(*elements, *reach) : std::nullopt;
  }
  const auto bytes = elements ? checked_mul(*elements, element_bytes) : std::nullopt;
  return bytes ? checked_add(start_bytes, *bytes) : std::nullopt;
}

std::vector<CopyOp> find_copies(const TensorEntry& tensor, const Box& box) {
  std::vector<CopyOp> copies;
  for (uint32_t i = 0; i < tensor.chunks.size(); ++i) {
    if (auto overlap = intersect(tensor.chunks[i].box, box)) copies.push_back({i, 0, *overlap});
  }
  return copies;
}

// How much of a strided block one enclosing read takes: all of dims[first..], and `step` indices of
// the dimension before.
struct Enclosing {
  size_t first;
  uint64_t step = 1;
};

Enclosing choose_enclosing(std::span<const StridedDim> dims, uint64_t element_bytes,
                           uint64_t scratch_bytes) {
  const uint64_t room = scratch_bytes / element_bytes;
  Enclosing chosen{dims.size()};
  while (chosen.first > 0) {
    const StridedDim& dim = dims[chosen.first - 1];
    const uint64_t inner = source_span(dims.subspan(chosen.first));
    const uint64_t hole = dim.source_stride > inner ? dim.source_stride - inner : 0;
    if (hole * element_bytes > kHoleBytesMax) break;
    if (inner + (dim.size - 1) * dim.source_stride > room) {
      chosen.step = 1 + (room - inner) / dim.source_stride;
      break;
    }
    --chosen.first;
  }
  return chosen;
}

// A chunk as a run of the tensor's row-major elements.
struct Run {
  uint64_t first = 0, count = 0;
  const Chunk* chunk = nullptr;
};

// Empty where a chunk is not a run, or runs do not follow each other to the end.
std::vector<Run> runs_of(const TensorEntry& tensor) {
  const Box all = whole(tensor.shape);
  std::vector<Run> runs;
  for (const Chunk& chunk : tensor.chunks) {
    const auto first = first_of_run(all, chunk.box);
    if (!first) return {};
    runs.push_back({*first, element_count(chunk.box.sizes), &chunk});
  }
  std::ranges::sort(runs, {}, &Run::first);
  uint64_t end = 0;
  for (const Run& run : runs) {
    if (run.first != end) return {};
    end += run.count;
  }
  if (end != element_count(tensor.shape)) runs.clear();
  return runs;
}

}  // namespace

std::span<std::byte> ScratchBuffer::bytes() {
  if (!memory_) {
    memory_.reset(new (kAlignment) std::byte[count_bytes_]);
    // A wish: with huge pages the kernel pins a window for O_DIRECT in a fraction of the time.
    (void)madvise(memory_.get(), count_bytes_, MADV_HUGEPAGE);
  }
  return {memory_.get(), count_bytes_};
}

void ScratchBuffer::Release::operator()(std::byte* memory) const {
  ::operator delete[](memory, kAlignment);
}

BoxReader::BoxReader(const TensorEntry& tensor, const Box& box, const PayloadSource& source,
                     BoxReaderOptions options)
    : tensor_(tensor),
      box_(box),
      source_(source),
      options_(std::move(options)),
      mover_(tensor),
      element_bytes_(mover_.bytes()),
      count_bytes_(element_count(box.sizes) * element_bytes_) {
  if (count_bytes_ == 0) return;
  if (!options_.copies) found_copies_ = find_copies(tensor, box);
  copies_ = options_.copies ? *options_.copies : std::span<const CopyOp>(found_copies_);
  if (options_.index == nullptr) options_.index = &own_index_.emplace(copies_);
}

BoxReader::Part& BoxReader::part_of(const CopyOp& copy) {
  const Chunk& chunk = tensor_.chunks[copy.chunk];
  const auto [entry, is_new] = parts_.try_emplace(copy.chunk, Part{&chunk, {}, 0});
  Part& part = entry->second;
  if (!is_new) return part;
  part.start_bytes = chunk.payload_offset_bytes;
  if (chunk.view) {
    part.strides = chunk.view->strides;
    part.start_bytes += chunk.view->offset * mover_.stored_bytes();
  } else {
    part.strides = row_major_strides(chunk.box.sizes);
  }
  return part;
}

// An entry may hold a tensor that is not row-major. The chunk may be a part of it: without leading
// dimensions, of which the payload's offset says how many rows were skipped.
StorageRegion BoxReader::locate(Part& part) const {
  const LocatedRegion storage = source_.locate(part.chunk->region);
  if (!storage.view) return storage;
  const Extents& strides = storage.view->strides;
  const Extents& sizes = part.chunk->box.sizes;
  const size_t dropped = strides.size() > sizes.size() ? strides.size() - sizes.size() : 0;
  const uint64_t row_bytes = std::max<uint64_t>(1, element_count(sizes) * mover_.stored_bytes());
  const uint64_t skipped_bytes = part.chunk->payload_offset_bytes;
  const uint64_t row = skipped_bytes / row_bytes;
  if (part.chunk->view || dropped + sizes.size() != strides.size() || dropped > 1 ||
      skipped_bytes % row_bytes != 0 || (dropped == 0 && row != 0)) {
    throw Error(ErrorCode::Unsupported,
                {source_.file_name(storage.file), storage.bytes.offset_bytes, tensor_.key},
                "a part of an entry that is not row-major");
  }
  part.start_bytes =
      (storage.view->offset + (dropped == 1 ? row * strides[0] : 0)) * mover_.stored_bytes();
  part.strides.assign(strides.begin() + static_cast<ptrdiff_t>(dropped), strides.end());
  return storage;
}

const StorageRegion& BoxReader::located(Part& part) {
  if (part.storage) return *part.storage;
  const StorageRegion storage = locate(part);
  const auto end =
      end_bytes(part.chunk->box.sizes, part.strides, part.start_bytes, mover_.stored_bytes());
  if (!end || *end > storage.bytes.count_bytes) {
    throw Error(ErrorCode::Corrupt,
                {source_.file_name(storage.file), storage.bytes.offset_bytes, tensor_.key},
                "the tensor needs more than the " + std::to_string(storage.bytes.count_bytes) +
                    " bytes of its storage");
  }
  part.storage = storage;
  return *part.storage;
}

void BoxReader::seek(uint64_t offset_bytes) {
  if (offset_bytes > count_bytes_ || offset_bytes % element_bytes_ != 0) {
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = tensor_.key},
                "there is no element at byte " + std::to_string(offset_bytes));
  }
  position_bytes_ = offset_bytes;
}

void BoxReader::read(std::span<std::byte> out) {
  if (out.size() > left_bytes() || out.size() % element_bytes_ != 0) {
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = tensor_.key},
                std::to_string(out.size()) + " bytes were requested, but only " +
                    std::to_string(left_bytes()) + " are left");
  }
  if (out.empty()) return;
  within({}, tensor_.key, [&] {
    std::byte* target = out.data();
    for (const Box& part :
         boxes_of_flat_range(box_, position_bytes_ / element_bytes_, out.size() / element_bytes_)) {
      read_box(part, target);
      target += element_count(part.sizes) * element_bytes_;
    }
  });
  position_bytes_ += out.size();
}

void BoxReader::read_at(uint64_t offset_bytes, std::span<std::byte> out) {
  const uint64_t behind_element = offset_bytes % element_bytes_;
  if (behind_element != 0) {
    const size_t head = std::min<size_t>(out.size(), element_bytes_ - behind_element);
    read_in_element(offset_bytes, out.first(head));
    offset_bytes += head;
    out = out.subspan(head);
  }
  const size_t whole_elements = out.size() - out.size() % element_bytes_;
  seek(offset_bytes - offset_bytes % element_bytes_);
  read(out.first(whole_elements));
  if (whole_elements < out.size()) {
    read_in_element(offset_bytes + whole_elements, out.subspan(whole_elements));
  }
}

void BoxReader::read_in_element(uint64_t offset_bytes, std::span<std::byte> out) {
  std::array<std::byte, kElementBytesMax> element;
  const size_t skipped = offset_bytes % element_bytes_;
  const uint64_t counted = mover_.overflow_count();
  seek(offset_bytes - skipped);
  read(std::span(element).first(element_bytes_));
  if (skipped != 0) mover_.count_from(counted);  // who reads its first byte counts it
  std::ranges::copy(std::span(element).subspan(skipped, out.size()), out.begin());
}

void BoxReader::read_box(const Box& box, std::byte* out) {
  uint64_t missing = element_count(box.sizes);
  for (const Overlap& overlap : options_.index->find(box)) {
    read_overlap(overlap, box, out);
    missing -= std::min(missing, element_count(overlap.part.sizes));
  }
  if (missing != 0) {
    throw Error(ErrorCode::Corrupt, {.file = tensor_.file, .key = tensor_.key},
                std::to_string(missing) + " elements are in no chunk of the checkpoint");
  }
}

StridedRead BoxReader::strided_read(const Part& part, const Box& overlap, const Box& box) const {
  const Extents target_strides = row_major_strides(box.sizes);
  StridedRead read{part.start_bytes, 0, std::vector<StridedDim>(overlap.sizes.size())};
  for (size_t d = 0; d < read.dims.size(); ++d) {
    read.dims[d] = {overlap.sizes[d], part.strides[d], target_strides[d]};
    read.start_bytes +=
        (overlap.offsets[d] - part.chunk->box.offsets[d]) * part.strides[d] * mover_.stored_bytes();
    read.target_offset_bytes +=
        (overlap.offsets[d] - box.offsets[d]) * target_strides[d] * element_bytes_;
  }
  read.dims = joined(std::move(read.dims));
  if (read.dims.empty()) read.dims.push_back({1, 1, 1});
  return read;
}

void BoxReader::read_overlap(const Overlap& overlap, const Box& box, std::byte* out) {
  const CopyOp& copy = copies_[overlap.box];
  Part& part = part_of(copy);
  const StorageRegion& storage = located(part);
  const auto [start_bytes, target_offset_bytes, dims] = strided_read(part, overlap.part, box);
  out += target_offset_bytes;
  if (options_.shared != nullptr) {
    const SharedCopy shared{watched_, storage, part.start_bytes, mover_,
                            strided_read(part, copy.overlap, box_)};
    const uint64_t counted = mover_.overflow_count();
    if (read_shared_rows(*options_.shared, shared, {start_bytes, 0, dims}, out)) return;
    mover_.count_from(counted);
  }
  const StridedDim& run = dims.back();
  const bool is_run = run.source_stride == 1 && run.target_stride == 1 && !mover_.casts();
  if (is_run && (dims.size() == 1 || run.size * element_bytes_ >= kDirectRunBytes)) {
    read_runs(storage, start_bytes, dims, out);
  } else {
    read_strided(storage, start_bytes, dims, out);
  }
}

void BoxReader::read_runs(const StorageRegion& storage, uint64_t start_bytes,
                          std::span<const StridedDim> dims, std::byte* out) {
  const uint64_t run_bytes = dims.back().size * element_bytes_;
  StridedWalk walk(dims.first(dims.size() - 1));
  do {
    read_in_slices(watched_, storage, start_bytes + walk.source_offset() * element_bytes_,
                   {out + walk.target_offset() * element_bytes_, run_bytes});
  } while (walk.next());
}

void BoxReader::read_strided(const StorageRegion& storage, uint64_t start_bytes,
                             std::span<const StridedDim> dims, std::byte* out) {
  const uint64_t stored_bytes = mover_.stored_bytes();
  const std::span<std::byte> buffer = (options_.scratch ? *options_.scratch : own_scratch_).bytes();
  const Enclosing enclosing = choose_enclosing(dims, stored_bytes, buffer.size());
  // A block is `step` indices of the dimension before the enclosed ones, which is walked by steps.
  const size_t stepped = enclosing.first == 0 ? 0 : enclosing.first - 1;
  std::vector<StridedDim> block(dims.begin() + static_cast<ptrdiff_t>(stepped), dims.end());
  const StridedDim whole = block[0];
  const uint64_t step = enclosing.first == 0 ? whole.size : enclosing.step;
  StridedWalk walk(dims.first(stepped));
  do {
    for (uint64_t i = 0; i < whole.size; i += step) {
      block[0].size = std::min(step, whole.size - i);
      const uint64_t source_offset = walk.source_offset() + i * whole.source_stride;
      const uint64_t target_offset = walk.target_offset() + i * whole.target_stride;
      const auto bytes = buffer.first(source_span(block) * stored_bytes);
      read_in_slices(watched_, storage, start_bytes + source_offset * stored_bytes, bytes);
      mover_.move(block, {bytes.data(), out + target_offset * mover_.bytes()});
    }
  } while (walk.next());
}

void read_in_slices(const WatchedSource& source, const StorageRegion& located,
                    uint64_t offset_bytes, std::span<std::byte> out) {
  if (!source.after_read) return source.payloads.read_bytes(located, offset_bytes, out);
  constexpr size_t kSliceBytes = 256 << 10;  // measured: 0.9 of the CPU time that 4 MiB take
  while (!out.empty()) {
    const std::span<std::byte> slice = out.first(std::min(kSliceBytes, out.size()));
    source.payloads.read_bytes(located, offset_bytes, slice);
    source.after_read(located, offset_bytes, slice);
    offset_bytes += slice.size();
    out = out.subspan(slice.size());
  }
}

std::optional<uint32_t> stated_crc(const StorageRegion& located) {
  if (located.bytes.count_bytes == 0 || located.crc32.value_or(0) == 0) return std::nullopt;
  return located.crc32;
}

void throw_crc_mismatch(const StorageRegion& located, uint32_t actual,
                        const PayloadSource& source) {
  throw Error(ErrorCode::Corrupt, {source.file_name(located.file), located.bytes.offset_bytes},
              "CRC-32 is " + hex(actual) + ", the archive says " + hex(located.crc32.value_or(0)));
}

void check_storage_crc(const StorageRegion& located, const PayloadSource& source) {
  const auto stated = stated_crc(located);
  if (!stated) return;
  ScratchBuffer buffer;
  uint32_t crc = 0;
  for (uint64_t offset = 0; offset < located.bytes.count_bytes;) {
    const std::span<std::byte> all = buffer.bytes();
    const auto part = all.first(std::min<uint64_t>(all.size(), located.bytes.count_bytes - offset));
    source.read_bytes(located, offset, part);
    crc = crc32(part, crc);
    offset += part.size();
  }
  if (crc != *stated) throw_crc_mismatch(located, crc, source);
}

std::optional<uint32_t> stated_checksum(const TensorEntry& tensor, const PayloadSource& source) {
  const uint64_t element_bytes = bytes_per_element(tensor.dtype);
  const std::vector<Run> runs = runs_of(tensor);
  if (runs.empty() || tensor.cast) return std::nullopt;
  uint32_t checksum = 0;
  for (const Run& run : runs) {
    if (run.chunk->view || run.chunk->payload_offset_bytes != 0) return std::nullopt;
    const LocatedRegion storage = source.locate(run.chunk->region);
    const uint64_t count_bytes = run.count * element_bytes;
    const bool is_its_own = !storage.view && storage.wrapping == Wrapping::None &&
                            storage.bytes.count_bytes == count_bytes;
    if (!storage.crc32 || !is_its_own) return std::nullopt;
    checksum = crc32_of_both(checksum, *storage.crc32, count_bytes);
  }
  return checksum;
}

}  // namespace ckpt

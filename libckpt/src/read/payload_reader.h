#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/plan.h>

#include "model/overlap_index.h"
#include "read/strided_copy.h"

namespace ckpt {

// Memory that is taken when it is first needed, and used again. It starts at a page.
class ScratchBuffer {
 public:
  explicit ScratchBuffer(size_t count_bytes = size_t{1} << 20) : count_bytes_(count_bytes) {}
  std::span<std::byte> bytes();

 private:
  struct Release {
    void operator()(std::byte* memory) const;
  };
  size_t count_bytes_;
  std::unique_ptr<std::byte[], Release> memory_;
};

// Called with what was read from a storage, as it is stored, and where in the storage it starts.
using AfterRead = std::function<void(const StorageRegion& located, uint64_t offset_bytes,
                                     std::span<const std::byte> bytes)>;

struct WatchedSource {
  const PayloadSource& payloads;
  const AfterRead& after_read;  // may be empty
};

// Reads a part of a storage in slices, which are still in a core's own cache when `after_read`
// looks at them.
void read_in_slices(const WatchedSource& source, const StorageRegion& located,
                    uint64_t offset_bytes, std::span<std::byte> out);

class SharedBlocks;

// What is read of a storage, and where in the target it goes, in bytes.
struct StridedRead {
  uint64_t start_bytes = 0;  // in the storage
  uint64_t target_offset_bytes = 0;
  std::vector<StridedDim> dims;
};

struct BoxReaderOptions {
  // What make_plan() found; default: looked up among all chunks of the tensor.
  std::optional<std::span<const CopyOp>> copies = std::nullopt;
  const OverlapIndex* index = nullptr;  // of the copies; default: its own
  // For chunks that do not lie in memory as the box does; default: 1 MiB of its own.
  ScratchBuffer* scratch = nullptr;
  AfterRead after_read = {};
  SharedBlocks* shared = nullptr;  // where others read the same rows at about the same time
};

// Reads a box of a tensor as consecutive row-major bytes, whatever chunks and type it is stored in:
// runs that are contiguous on both sides go straight into the caller's memory, others through long
// reads that enclose many short runs. Tensor, source and copies must outlive it. For one thread at
// a time.
class BoxReader {
 public:
  BoxReader(const TensorEntry& tensor, const Box& box, const PayloadSource& source,
            BoxReaderOptions options = {});
  BoxReader(const BoxReader&) = delete;  // the index may be its own

  uint64_t count_bytes() const { return count_bytes_; }
  uint64_t left_bytes() const { return count_bytes_ - position_bytes_; }
  void seek(uint64_t offset_bytes);  // to an element of the box

  // The next out.size() bytes: whole elements, at most left_bytes(). Throws Corrupt where no chunk
  // has an element, or a chunk leaves its storage.
  void read(std::span<std::byte> out);

  // Bytes from any place in the box, which may start and end within an element.
  void read_at(uint64_t offset_bytes, std::span<std::byte> out);

  // Numbers that were read and became infinite, as the tensor's cast allows.
  uint64_t overflow_count() const { return mover_.overflow_count(); }

 private:
  // A chunk that shares elements with the box.
  struct Part {
    const Chunk* chunk;
    Extents strides;       // of its storage, in elements
    uint64_t start_bytes;  // of the chunk's first element in its storage
    std::optional<StorageRegion> storage = std::nullopt;  // once it was located
  };

  Part& part_of(const CopyOp& copy);
  StorageRegion locate(Part& part) const;
  const StorageRegion& located(Part& part);
  void read_in_element(uint64_t offset_bytes, std::span<std::byte> out);
  void read_box(const Box& box, std::byte* out);
  void read_overlap(const Overlap& overlap, const Box& box, std::byte* out);
  // How to read a box of a chunk into a box around it.
  StridedRead strided_read(const Part& part, const Box& overlap, const Box& box) const;
  // Reads a strided block of a storage, the first element of which is `start_bytes` into it.
  void read_strided(const StorageRegion& storage, uint64_t start_bytes,
                    std::span<const StridedDim> dims, std::byte* out);
  void read_runs(const StorageRegion& storage, uint64_t start_bytes,
                 std::span<const StridedDim> dims, std::byte* out);

  const TensorEntry& tensor_;
  Box box_;
  const PayloadSource& source_;
  BoxReaderOptions options_;
  WatchedSource watched_{source_, options_.after_read};
  ElementMover mover_;
  uint64_t element_bytes_;  // as they are read, not as they are stored
  uint64_t count_bytes_;
  uint64_t position_bytes_ = 0;
  std::vector<CopyOp> found_copies_;
  std::span<const CopyOp> copies_;
  std::optional<OverlapIndex> own_index_;
  std::unordered_map<uint32_t, Part> parts_;  // by chunk; of what was read
  ScratchBuffer own_scratch_;
};

// The checksum that an archive states for a storage; nullopt where it states none.
std::optional<uint32_t> stated_crc(const StorageRegion& located);

// Error(Corrupt) with the storage's place: its bytes have another checksum than the archive says.
[[noreturn]] void throw_crc_mismatch(const StorageRegion& located, uint32_t actual,
                                     const PayloadSource& source);

// Streams a located storage and compares its CRC-32 with the archive's, if that states one.
void check_storage_crc(const StorageRegion& located, const PayloadSource& source);

// The CRC-32 of a tensor's row-major bytes as the checksums that its files state for their storages
// give it: nothing is read but where the storages are. None where a storage has no checksum, holds
// more than its chunk, or a chunk is not one contiguous run of the tensor.
std::optional<uint32_t> stated_checksum(const TensorEntry& tensor, const PayloadSource& source);

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

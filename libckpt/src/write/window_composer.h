#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "write/archive_state.h"
#include "write/record_reader.h"

namespace ckpt {

// The memory of a window, addressed by places in the file.
class WindowBytes {
 public:
  WindowBytes(ByteRange range, std::span<std::byte> memory) : range_(range), memory_(memory) {}

  ByteRange range() const { return range_; }

  // What the window shows of an item of the file: nothing, or memory and the place of its first
  // byte in the item.
  struct Part {
    uint64_t offset_bytes = 0;
    std::span<std::byte> memory;
  };
  Part part_of(ByteRange item) const;
  // Copies what the window shows of a text that starts there in the file.
  void put(uint64_t offset_bytes, std::string_view text) const;

 private:
  ByteRange range_;
  std::span<std::byte> memory_;
};

// The CRC-32 of memory that is filled from front to back. Long parts that were summed already are
// not looked at again.
class WindowSum {
 public:
  explicit WindowSum(std::span<const std::byte> memory) : memory_(memory) {}

  void add_summed(std::span<const std::byte> part, uint32_t crc);
  uint32_t finish();

 private:
  void sum_up_to(size_t end);

  std::span<const std::byte> memory_;
  size_t summed_bytes_ = 0;
  uint32_t crc_ = 0;
};

// What the bytes of a window give of checksums.
struct WindowSums {
  struct Record {
    size_t index;    // into Plan::records
    uint32_t crc32;  // as WrittenPiece::record_crcs has it
  };
  uint32_t crc32 = 0;
  std::vector<Record> records;  // none where a piece is a whole file
};

// Makes the bytes of a window from the target and what the source holds. For one thread.
class WindowComposer {
 public:
  struct Job {
    const Target& target;
    const Plan& plan;
    OpenArchives& archives;
  };
  // `foreign`: reads what a window has in it of another piece's own; who writes that one checks it.
  WindowComposer(const Job& job, RecordReader reader, RecordReader foreign)
      : job_(job), reader_(reader), foreign_(foreign) {}

  // Fills `out`, of the window's length. `number`: the window's. Waits for the checksums of windows
  // with lower numbers where this one states them.
  WindowSums compose(const Window& window, size_t number, std::span<std::byte> out);

 private:
  struct Archive {
    ArchiveState& state;
    uint64_t offset_bytes;  // in the file
    std::span<const TargetRecord> records;
    std::span<const RecordPlan> plans;
  };
  void compose_archive(const Archive& archive);
  void put_member(const Archive& archive, size_t member);
  void put_data(const Archive& archive, size_t member);
  void put_record(const Archive& archive, size_t member, WindowBytes::Part part);
  void sum_up_head(const Archive& archive);
  void sum_up_tail();
  void add_sum(const RecordPlan& plan, ByteRange part, uint32_t crc);
  const Piece& piece() const { return job_.archives.windows().pieces()[window_.piece]; }
  bool is_first_of_piece() const;
  void put_directory(const Archive& archive);
  void compose_archives(const Window& window);

  Job job_;
  RecordReader reader_, foreign_;
  WindowBytes bytes_{{}, {}};
  WindowSum sum_{{}};
  WindowSums sums_;
  Window window_;
  size_t number_ = 0;
};

}  // namespace ckpt

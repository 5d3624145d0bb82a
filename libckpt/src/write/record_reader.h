#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "model/overlap_index.h"
#include "read/payload_reader.h"
#include "read/shared_blocks.h"
#include "write/shared_reads.h"
#include "write/source_checker.h"

namespace ckpt {

// Indices of the copies of records that many windows show, so that not each window makes its own:
// only the records that are at work are kept. Safe to use from many threads.
class ChunkIndices {
 public:
  explicit ChunkIndices(unsigned threads) : kept_max_(2 * size_t{threads}) {}

  // Of the copies' overlaps; null for records of few copies.
  std::shared_ptr<const OverlapIndex> index_of(const RecordPlan& record);

 private:
  using Entry = std::pair<const RecordPlan*, std::shared_ptr<const OverlapIndex>>;

  const size_t kept_max_;  // each thread may be at the end of one record and the start of another
  std::mutex mutex_;
  std::deque<Entry> recent_;
};

// Counts numbers that became infinite in another type, by key. Safe to use from many threads.
class OverflowCounts {
 public:
  void add(const std::string& key, uint64_t count);
  std::vector<ExecuteStats::Overflow> take();  // by key

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> counts_;
};

// What records are read through.
struct ReadBuffers {
  ScratchBuffer& scratch;  // where elements do not lie in the target's order
  const SharedReads& shared_reads;
  SharedBlocks& shared_blocks;
  OverflowCounts* overflows;  // null: others count them
};

// Reads the bytes of a target's records from where they come from. For one thread.
class RecordReader {
 public:
  RecordReader(const PayloadSource& source, SourceChecker& checker, ChunkIndices& indices,
               const ReadBuffers& buffers)
      : source_(source), checker_(checker), indices_(indices), buffers_(buffers) {}

  // Fills `out` with a record's bytes from `offset_bytes` on, and returns their CRC-32. What is
  // read of the source is checked against the source's checksums.
  uint32_t read(const TargetRecord& record, const RecordPlan& plan, uint64_t offset_bytes,
                std::span<std::byte> out);

 private:
  uint32_t read_storage(const TargetRecord& record, uint64_t offset_bytes,
                        std::span<std::byte> out);
  SharedBlocks* blocks_of(const RecordPlan& plan) const;
  void count_overflows(const BoxReader& reader, const std::string& key) const;
  uint32_t read_segments(const std::vector<Segment>& segments, const RecordPlan& plan,
                         uint64_t offset_bytes, std::span<std::byte> out);
  uint32_t read_tensor(const TensorSource& tensor, const RecordPlan& plan, uint64_t offset_bytes,
                       std::span<std::byte> out);

  const PayloadSource& source_;
  SourceChecker& checker_;
  ChunkIndices& indices_;
  ReadBuffers buffers_;
};

}  // namespace ckpt

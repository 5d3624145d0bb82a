#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "read/payload_reader.h"
#include "read/shared_blocks.h"
#include "write/chunk_indices.h"
#include "write/shared_reads.h"
#include "write/source_checker.h"

namespace ckpt {

// What records are read through.
struct ReadBuffers {
  ScratchBuffer& scratch;  // where elements do not lie in the target's order
  const SharedReads& shared_reads;
  SharedBlocks& shared_blocks;
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

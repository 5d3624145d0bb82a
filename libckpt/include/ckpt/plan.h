#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/target.h>

namespace ckpt {

// One overlap of a source chunk with a record of the target.
struct CopyOp {
  uint32_t chunk = 0;  // index into the source tensor's chunks
  Box overlap;         // in the source tensor's index space
};

// One record of the target: where its bytes go, and which chunks they come from (none for storages
// and literals).
struct RecordPlan {
  uint32_t file = 0, archive = 0, record = 0;  // indices into Target::files, ::archives, ::records
  uint64_t offset_bytes = 0;                   // in the target file
  std::vector<CopyOp> copies;
};

struct PlannedFile {
  std::string path;
  uint64_t count_bytes = 0;
  std::vector<uint64_t> archive_offsets = {};  // where each archive of the target's file starts
};

struct Plan {
  std::vector<PlannedFile> files;   // as Target::files
  std::vector<RecordPlan> records;  // ordered by file and offset
  uint64_t payload_bytes = 0;       // moved
  uint64_t total_bytes = 0;         // of all files
};

// Pure. Throws Corrupt, with the key, where the chunks of a source tensor leave an element of a
// record uncovered.
CKPT_EXPORT Plan make_plan(const Target& target);

}  // namespace ckpt

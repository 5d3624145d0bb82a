#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/target.h>

namespace ckpt {

// One overlap of a source chunk with a record of the target.
struct CopyOp {
  uint32_t chunk = 0;    // index into the source tensor's chunks
  uint32_t segment = 0;  // of the record, where it has several
  Box overlap;           // in the source tensor's index space
};

// One record of the target: where its bytes go, and which chunks they come from (none for storages
// and literals), in the order of its segments.
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

// A part of a file that is written by one process.
struct Piece {
  static constexpr uint64_t kBlockBytes = 64 << 10;  // no page of a file has two writers

  uint32_t file = 0;  // index into Plan::files
  ByteRange bytes;    // of the file; starts at a whole block, but for one that closes
  // Where the payload is whose checksums it finds out: from where a record starts, or a segment of
  // one. What of that lies in front of `bytes` or behind, each less than a block, other pieces
  // write; it is read here, too. `own` of all pieces that close nothing covers the file.
  ByteRange own;
  size_t first_record = 0, end_record = 0;  // Plan::records of which something is in `own`
  // States checksums of records that lie in several pieces, and of all records where they close
  // the file; is written when they are known. `own` is empty.
  bool closes = false;
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

// The files of a plan in pieces, in the order of files and offsets: cut in front of records and of
// segments, into no less than `piece_bytes_min`, so that how many there are depends on nothing
// else. What follows a record that was cut may be shorter. Pure.
std::vector<Piece> cut_into_pieces(const Target& target, const Plan& plan,
                                   uint64_t piece_bytes_min);
// Each file as one piece.
std::vector<Piece> whole_files(const Plan& plan);

}  // namespace ckpt

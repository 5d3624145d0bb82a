#pragma once

#include <cstdint>
#include <vector>

#include <ckpt/plan.h>
#include <ckpt/target.h>

namespace ckpt {

// A part of a target file that one job composes in one buffer and writes with one call.
struct Piece {
  enum class Kind : uint8_t {
    Bytes,     // a whole file that has no archives
    Archives,  // `count` whole archives
    Members,   // `count` whole members of one archive: header, data, descriptor
    Slice,     // a part of the data of one member
  };
  Kind kind = Kind::Bytes;
  uint32_t file = 0;
  uint32_t archive = 0;  // the first one
  uint32_t member = 0;   // the first one
  uint32_t count = 0;
  uint32_t split = 0;               // Members, Slice: which SplitArchive
  ByteRange bytes;                  // in the file
  uint64_t slice_offset_bytes = 0;  // Slice: from the start of the member's data
};

struct ArchivePlace {
  uint64_t offset_bytes = 0;  // in the file
  uint64_t first_record = 0;  // index into Plan::records
};

// An archive that several pieces make. What its pieces leave out is written when the last is done:
// headers and descriptors of sliced members, the serialization id, and the directory.
struct SplitArchive {
  uint32_t file = 0;
  uint32_t archive = 0;
  uint32_t piece_count = 0;
};

// A target cut into pieces of at most `piece_bytes` (but for Kind::Bytes), in the order of its
// files. What the files will hold does not depend on the cuts.
struct TargetPieces {
  std::vector<Piece> pieces;
  std::vector<std::vector<ArchivePlace>> archives;  // by file and archive
  std::vector<SplitArchive> split;
  std::vector<uint32_t> piece_count;  // by file
  uint64_t piece_bytes = 0;
};
TargetPieces cut_target(const Target& target, uint64_t piece_bytes);

}  // namespace ckpt

#include "publish/part_records.h"

#include <algorithm>

#include <ckpt/error.h>

#include "io/directory.h"
#include "write/output_files.h"

namespace ckpt {

std::vector<FinishedPiece> PartRecords::finished_by(uint32_t rank) const {
  auto record = read_part_record(place_of(rank));
  if (!record || record->job != job_.text()) return {};
  return std::move(record->pieces);
}

PartRecords::Parts PartRecords::whole_parts() const {
  Parts parts;
  for (uint32_t rank = 0; rank < job_.processes; ++rank) {
    auto record = read_part_record(place_of(rank));
    if (record && record->job != job_.text()) {
      throw Error(ErrorCode::AlreadyExists, {place_of(rank).path().string()},
                  "belongs to another job");
    }
    if (record && record->is_complete) {
      std::ranges::move(record->pieces, std::back_inserter(parts.pieces));
    } else {
      ++parts.missing;
    }
  }
  return parts;
}

void PartRecords::refuse_lost(const std::vector<std::string>& absent, const Place& content) const {
  if (absent.empty()) return;
  for (uint32_t rank = 0; rank < job_.processes; ++rank) {
    for (const FinishedPiece& piece : finished_by(rank)) {
      if (std::ranges::find(absent, piece.path) == absent.end()) continue;
      // Looked at again: it may have come since.
      if (kind_of_entry(output_path(content, piece.path)) == EntryKind::File) continue;
      throw Error(ErrorCode::AlreadyExists, {notes_.path().string()},
                  "what other processes wrote of " +
                      (piece.path.empty() ? "the file" : "'" + escaped(piece.path) + "'") +
                      " is gone",
                  "--clean removes the rest");
    }
  }
}

}  // namespace ckpt

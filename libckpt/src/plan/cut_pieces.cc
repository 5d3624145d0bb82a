#include <ckpt/archive_layout.h>
#include <ckpt/plan.h>

#include <algorithm>

#include "base/checked_math.h"

namespace ckpt {
namespace {

constexpr uint64_t kRecordBytesMin = 2 * Piece::kBlockBytes;  // of one that a piece starts with

class Cutter {
 public:
  Cutter(const Target& target, const Plan& plan, uint64_t piece_bytes_min)
      : target_(target), plan_(plan), piece_bytes_min_(piece_bytes_min) {}

  std::vector<Piece> cut() {
    for (const Piece& file : whole_files(plan_)) cut_file(file);
    return std::move(pieces_);
  }

 private:
  void cut_file(const Piece& whole) {
    const uint32_t file = whole.file;
    const uint64_t file_bytes = whole.bytes.count_bytes;
    const size_t end = whole.end_record;
    if (file_bytes / 2 < piece_bytes_min_) return pieces_.push_back(whole);
    Piece piece = whole;
    const uint64_t closing_offset_bytes = closing_of(file);
    for (size_t r = whole.first_record; r < end; ++r) {
      const uint64_t at = align_up(plan_.records[r].offset_bytes, Piece::kBlockBytes);
      const bool is_enough = at >= piece.bytes.offset_bytes + piece_bytes_min_ &&
                             closing_offset_bytes >= at + piece_bytes_min_;
      if (!is_enough || !can_start_with(plan_.records[r])) continue;
      pieces_.push_back({file, up_to(piece, at), piece.first_record, r, false});
      piece = {file, {at, file_bytes - at}, r, end, false};
    }
    const bool is_closed_apart =
        piece.bytes.offset_bytes != 0 && closing_offset_bytes != file_bytes;
    if (is_closed_apart) piece.bytes = up_to(piece, closing_offset_bytes);
    pieces_.push_back(piece);
    if (!is_closed_apart) return;
    pieces_.push_back(
        {file, {closing_offset_bytes, file_bytes - closing_offset_bytes}, end, end, true});
  }

  static ByteRange up_to(const Piece& piece, uint64_t end_bytes) {
    return {piece.bytes.offset_bytes, end_bytes - piece.bytes.offset_bytes};
  }

  // Of several archives none is cut, so that each states its checksums itself.
  uint64_t closing_of(uint32_t file) const {
    const std::vector<TargetArchive>& archives = target_.files[file].archives;
    return archives.size() == 1 ? archive_layout(archives[0]).closing_offset_bytes
                                : plan_.files[file].count_bytes;
  }

  bool can_start_with(const RecordPlan& record) const {
    const std::vector<TargetArchive>& archives = target_.files[record.file].archives;
    const uint64_t bytes = archives[record.archive].records[record.record].count_bytes;
    return bytes >= kRecordBytesMin && (archives.size() == 1 || record.record == 0);
  }

  const Target& target_;
  const Plan& plan_;
  const uint64_t piece_bytes_min_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> cut_into_pieces(const Target& target, const Plan& plan,
                                   uint64_t piece_bytes_min) {
  return Cutter(target, plan, std::max(piece_bytes_min, kRecordBytesMin)).cut();
}

std::vector<Piece> whole_files(const Plan& plan) {
  std::vector<Piece> pieces;
  size_t record = 0;
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    const size_t first = record;
    while (record < plan.records.size() && plan.records[record].file == f) ++record;
    pieces.push_back({f, {0, plan.files[f].count_bytes}, first, record, false});
  }
  return pieces;
}

}  // namespace ckpt

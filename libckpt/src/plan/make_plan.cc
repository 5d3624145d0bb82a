#include <algorithm>
#include <unordered_map>

#include <ckpt/archive_builder.h>
#include <ckpt/error.h>
#include <ckpt/flat_range.h>
#include <ckpt/plan.h>

#include "base/checked_math.h"
#include "model/overlap_index.h"
#include "targets/archive_writer.h"

// Where files are cut into pieces that different processes write:
//
//   | piece                        | piece            |closes| piece           |closes |
//   |header| record | record      .  segments, cut    |d|head. record         |directory
//                                  ^ a block in a segment      ^ the block after the descriptor
//
// A record's checksum stands in its descriptor behind it, and in the directory at the end of its
// archive. Of a record that was cut, the descriptor is a piece of its own, up to the next block.

namespace ckpt {
namespace {

// Which chunks of a tensor a box meets, in their order. One index for each tensor of the source
// that has many: many records are cut from one tensor.
class ChunkIndices {
 public:
  std::vector<Overlap> find(const TensorEntry& tensor, const Box& box) {
    constexpr size_t kFewChunks = 4;  // what one expert has, of 10^6
    if (tensor.chunks.size() <= kFewChunks) {
      std::vector<Overlap> overlaps;
      for (uint32_t i = 0; i < tensor.chunks.size(); ++i) {
        if (auto part = intersect(tensor.chunks[i].box, box)) {
          overlaps.push_back({i, std::move(*part)});
        }
      }
      return overlaps;
    }
    auto found = indices_.find(&tensor);
    if (found == indices_.end()) {
      found = indices_.emplace(&tensor, OverlapIndex(tensor.chunks)).first;
    }
    return found->second.find(box);
  }

 private:
  std::unordered_map<const TensorEntry*, OverlapIndex> indices_;
};

[[noreturn]] void refuse(const TensorEntry& tensor, ErrorCode code, std::string problem) {
  throw Error(code, {.file = tensor.file, .key = tensor.key}, std::move(problem));
}

bool lies_inside(const Box& box, const Extents& shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!fits(box.offsets[d], box.sizes[d], shape[d])) return false;
  }
  return true;
}

void check_box(const TensorSource& source) {
  if (lies_inside(source.box, source.tensor->shape)) return;
  refuse(*source.tensor, ErrorCode::InvalidArgument, "the requested box extends beyond the tensor");
}

void check_count(const std::string& what, uint64_t actual_bytes, uint64_t stated_bytes) {
  if (actual_bytes == stated_bytes) return;
  throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = what},
              "a record of " + std::to_string(stated_bytes) + " bytes cannot hold " +
                  std::to_string(actual_bytes));
}

class Planner {
 public:
  explicit Planner(const Target& target) : target_(target) {}

  Plan plan() {
    size_t count = 0;
    for (const TargetFile& file : target_.files) count += file.archives.size();
    plan_.records.reserve(count);  // most archives have one
    for (uint32_t f = 0; f < target_.files.size(); ++f) add_file(f);
    return std::move(plan_);
  }

 private:
  void add_file(uint32_t file) {
    const TargetFile& target = target_.files[file];
    PlannedFile planned{target.path, target.archives.empty() ? target.bytes.size() : 0};
    planned.archive_offsets.reserve(target.archives.size());
    for (uint32_t a = 0; a < target.archives.size(); ++a) {
      planned.archive_offsets.push_back(planned.count_bytes);
      planned.count_bytes += add_archive(file, a, planned.count_bytes);
    }
    plan_.total_bytes += planned.count_bytes;
    plan_.files.push_back(std::move(planned));
  }

  // Returns how long the archive is.
  uint64_t add_archive(uint32_t file, uint32_t index, uint64_t archive_offset_bytes) {
    const TargetArchive& archive = target_.files[file].archives[index];
    const ArchiveLayout& layout = layouts_.of(archive);
    for (uint32_t r = 0; r < archive.records.size(); ++r) {
      const uint64_t offset_bytes = archive_offset_bytes + layout.records[r].offset_bytes;
      plan_.records.push_back(
          {file, index, r, offset_bytes, copies_of(archive, archive.records[r])});
      plan_.payload_bytes += archive.records[r].count_bytes;
    }
    return layout.count_bytes;
  }

  std::vector<CopyOp> copies_of(const TargetArchive& archive, const TargetRecord& record) {
    if (const auto* bytes = std::get_if<std::string>(&record.source)) {
      check_count(archive.name, bytes->size(), record.count_bytes);
      return {};
    }
    if (const auto* storage = std::get_if<StorageSource>(&record.source)) {
      // How long a wrapped storage is shows only when the archive around it is opened.
      if (storage->region.wrapping == Wrapping::None) {
        check_count(archive.name, storage->region.bytes.count_bytes, record.count_bytes);
      }
      return {};
    }
    if (const auto* segments = std::get_if<std::vector<Segment>>(&record.source)) {
      return copies_of(*segments, record.count_bytes);
    }
    const auto& source = std::get<TensorSource>(record.source);
    check_box(source);
    std::vector<CopyOp> copies;
    add_copies(*source.tensor, source.box, 0, copies);
    check_count(source.tensor->key,
                element_count(source.box.sizes) * bytes_per_element(source.tensor->dtype),
                record.count_bytes);
    return copies;
  }

  std::vector<CopyOp> copies_of(const std::vector<Segment>& segments, uint64_t record_bytes) {
    std::vector<CopyOp> copies;
    uint64_t filled_bytes = 0;
    for (uint32_t s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      filled_bytes = end_of(segment, {filled_bytes, record_bytes - filled_bytes});
      for (const Box& box :
           boxes_of_flat_range(segment.source.box, segment.first_element, segment.element_count)) {
        add_copies(*segment.source.tensor, box, s, copies);
      }
    }
    return copies;
  }

  // Chunks are disjoint, so a box is covered when what it shares with them adds up to its size.
  void add_copies(const TensorEntry& tensor, const Box& box, uint32_t segment,
                  std::vector<CopyOp>& copies) {
    const uint64_t wanted = element_count(box.sizes);
    if (wanted == 0) return;
    uint64_t covered = 0;
    for (Overlap& overlap : indices_.find(tensor, box)) {
      covered += element_count(overlap.part.sizes);
      copies.push_back({overlap.box, segment, std::move(overlap.part)});
    }
    if (covered < wanted) {
      refuse(tensor, ErrorCode::Corrupt,
             std::to_string(wanted - covered) + " of " + std::to_string(wanted) +
                 " elements are in no chunk of the checkpoint");
    }
    if (covered > wanted) refuse(tensor, ErrorCode::Corrupt, "chunks of the tensor overlap");
  }

  // Of a segment that must lie in `left` of the record.
  static uint64_t end_of(const Segment& segment, ByteRange left) {
    const TensorEntry& tensor = *segment.source.tensor;
    check_box(segment.source);
    if (!fits(segment.first_element, segment.element_count,
              element_count(segment.source.box.sizes))) {
      refuse(tensor, ErrorCode::InvalidArgument,
             "a segment requests more elements than its box has");
    }
    const uint64_t count_bytes = segment.element_count * bytes_per_element(tensor.dtype);
    if (segment.offset_bytes < left.offset_bytes ||
        !fits(segment.offset_bytes, count_bytes, left.end_bytes())) {
      refuse(tensor, ErrorCode::InvalidArgument,
             "a segment overlaps the one before it, or leaves its record");
    }
    return segment.offset_bytes + count_bytes;
  }

  const Target& target_;
  ArchiveLayouts layouts_;
  ChunkIndices indices_;
  Plan plan_;
};

constexpr uint64_t kRecordBytesMin = 2 * Piece::kBlockBytes;  // of one that a piece starts with

// Where a piece starts, and where what it owns does.
struct Cut {
  uint64_t offset_bytes = 0;
  uint64_t own_offset_bytes = 0;
  bool closes = false;
};

// The cuts of one file.
class FileCutter {
 public:
  FileCutter(const Target& target, const Plan& plan, const Piece& whole, uint64_t piece_bytes_min)
      : file_(target.files[whole.file]),
        planned_(plan.files[whole.file]),
        records_(std::span(plan.records)
                     .subspan(whole.first_record, whole.end_record - whole.first_record)),
        piece_bytes_min_(piece_bytes_min),
        closing_offset_bytes_(closing_offset()) {}

  std::vector<Cut> cut() {
    if (planned_.count_bytes / 2 < piece_bytes_min_) return cuts_;
    for (const RecordPlan& record : records_) {
      if (may_start_with(record)) cut_at(record.offset_bytes, closing_offset_bytes_);
      cut_inside(record);
      if (is_closed_) return cuts_;
    }
    if (cuts_.size() > 1 && closing_offset_bytes_ != planned_.count_bytes) {
      close(closing_offset_bytes_, planned_.count_bytes);
    }
    return cuts_;
  }

 private:
  // Of several archives each states its checksums itself, and at its own end.
  uint64_t closing_offset() const {
    return file_.archives.size() == 1 ? archive_layout(file_.archives[0]).closing_offset_bytes
                                      : planned_.count_bytes;
  }

  const TargetArchive& archive_of(const RecordPlan& record) const {
    return file_.archives[record.archive];
  }
  uint64_t end_of(const RecordPlan& record) const {
    return record.offset_bytes + archive_of(record).records[record.record].count_bytes;
  }

  bool may_start_with(const RecordPlan& record) const {
    return end_of(record) - record.offset_bytes >= kRecordBytesMin &&
           (file_.archives.size() == 1 || record.record == 0);
  }

  // At the first whole block behind what starts there, if the pieces before it and behind it, up to
  // `end_bytes`, get long enough.
  bool cut_at(uint64_t own_offset_bytes, uint64_t end_bytes) {
    const uint64_t at = align_up(own_offset_bytes, Piece::kBlockBytes);
    const bool is_enough =
        at >= cuts_.back().offset_bytes + piece_bytes_min_ && end_bytes >= at + piece_bytes_min_;
    if (is_enough) cuts_.push_back({at, own_offset_bytes, false});
    return is_enough;
  }

  void cut_inside(const RecordPlan& record) {
    const TargetArchive& archive = archive_of(record);
    const auto* segments =
        std::get_if<std::vector<Segment>>(&archive.records[record.record].source);
    const bool is_last = record.record + 1 == archive.records.size();
    if (segments == nullptr || (file_.archives.size() > 1 && !is_last)) return;
    const size_t count_before = cuts_.size();
    for (const Segment& segment : *segments) {
      const uint64_t start = record.offset_bytes + segment.offset_bytes;
      const uint64_t end =
          start + segment.element_count * bytes_per_element(segment.source.tensor->dtype);
      if (start != record.offset_bytes && align_up(start, Piece::kBlockBytes) < end) {
        cut_at(start, end_of(record));
      }
    }
    const bool is_cut = cuts_.size() > count_before;
    if (is_cut && !std::holds_alternative<RawHeader>(archive.content)) {
      close(end_of(record), end_of_checksums(record));
    }
  }

  // What states the record's checksum lies before this; not the directory of the only archive.
  uint64_t end_of_checksums(const RecordPlan& record) const {
    const size_t next_archive = record.archive + size_t{1};
    if (next_archive < file_.archives.size()) return planned_.archive_offsets[next_archive];
    const bool is_last = record.record + 1 == archive_of(record).records.size();
    return is_last ? planned_.count_bytes : (&record + 1)->offset_bytes;
  }

  // A piece from the end of a record on.
  void close(uint64_t offset_bytes, uint64_t end_bytes) {
    uint64_t end = std::min(align_up(end_bytes, Piece::kBlockBytes), planned_.count_bytes);
    if (file_.archives.size() == 1 && end >= closing_offset_bytes_) end = planned_.count_bytes;
    is_closed_ = end == planned_.count_bytes;
    const uint64_t own = is_closed_ ? end : own_offset_between(offset_bytes, end);
    cuts_.push_back({offset_bytes, own, true});
    if (!is_closed_) cuts_.push_back({end, own, false});
  }

  // What the piece behind one that closes something owns of that: the last record that starts in
  // it, whose descriptor may lie behind it, or all records of its archive, whose directory does.
  uint64_t own_offset_between(uint64_t offset_bytes, uint64_t end_bytes) const {
    const auto next = std::ranges::lower_bound(records_, end_bytes, {}, &RecordPlan::offset_bytes);
    if (next == records_.begin() || std::prev(next)->offset_bytes < offset_bytes) return end_bytes;
    const RecordPlan& last = *std::prev(next);
    if (file_.archives.size() == 1) return last.offset_bytes;
    const bool is_over = last.archive + size_t{1} < file_.archives.size() &&
                         planned_.archive_offsets[last.archive + size_t{1}] <= end_bytes;
    if (is_over) return end_bytes;
    return std::ranges::lower_bound(records_, last.archive, {}, &RecordPlan::archive)->offset_bytes;
  }

  const TargetFile& file_;
  const PlannedFile& planned_;
  const std::span<const RecordPlan> records_;
  const uint64_t piece_bytes_min_;
  const uint64_t closing_offset_bytes_;
  bool is_closed_ = false;  // up to its end
  std::vector<Cut> cuts_ = {Cut{}};
};

// Gives a piece its records. `record`: goes on from file to file.
void add_records(const Target& target, const Plan& plan, Piece& piece, size_t& record) {
  const auto end_of = [&](size_t r) {
    const auto& [file, archive, number, offset_bytes, copies] = plan.records[r];
    return offset_bytes + target.files[file].archives[archive].records[number].count_bytes;
  };
  piece.first_record = record;
  const bool is_last = piece.own.end_bytes() == plan.files[piece.file].count_bytes;
  const auto is_in = [&] {  // an empty record may start where the file ends
    return record < plan.records.size() && plan.records[record].file == piece.file &&
           (is_last || plan.records[record].offset_bytes < piece.own.end_bytes());
  };
  while (is_in() && end_of(record) <= piece.own.end_bytes()) ++record;
  piece.end_record = record + (is_in() ? 1 : 0);
}

}  // namespace

Plan make_plan(const Target& target) { return Planner(target).plan(); }

std::vector<Piece> cut_into_pieces(const Target& target, const Plan& plan,
                                   uint64_t piece_bytes_min) {
  piece_bytes_min = std::max(piece_bytes_min, kRecordBytesMin);
  std::vector<Piece> pieces;
  size_t record = 0;
  for (const Piece& whole : whole_files(plan)) {
    std::vector<Cut> cuts = FileCutter(target, plan, whole, piece_bytes_min).cut();
    const uint64_t file_bytes = whole.bytes.count_bytes;
    cuts.push_back({file_bytes, file_bytes, false});
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const auto& [offset_bytes, own_offset_bytes, closes] = cuts[c];
      Piece piece{.file = whole.file,
                  .bytes = {offset_bytes, cuts[c + 1].offset_bytes - offset_bytes},
                  .own = {own_offset_bytes, cuts[c + 1].own_offset_bytes - own_offset_bytes},
                  .closes = closes};
      if (!closes) add_records(target, plan, piece, record);
      pieces.push_back(piece);
    }
  }
  return pieces;
}

std::vector<Piece> whole_files(const Plan& plan) {
  std::vector<Piece> pieces;
  size_t record = 0;
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    const size_t first = record;
    while (record < plan.records.size() && plan.records[record].file == f) ++record;
    const ByteRange bytes = {0, plan.files[f].count_bytes};
    pieces.push_back({f, bytes, bytes, first, record, false});
  }
  return pieces;
}

}  // namespace ckpt

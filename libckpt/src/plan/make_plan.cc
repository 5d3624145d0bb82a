#include <ckpt/error.h>
#include <ckpt/flat_range.h>
#include <ckpt/plan.h>

#include <unordered_map>

#include "base/checked_math.h"
#include "model/overlap_index.h"
#include "targets/archive_layouts.h"

namespace ckpt {

namespace {

// Which chunks of a tensor a box meets, in their order. One index for each tensor of the source
// that has many: many records are cut from one tensor.
class ChunkIndices {
 public:
  std::vector<Overlap> find(const TensorEntry& tensor, const Box& box) {
    if (tensor.chunks.size() <= kFewChunks) return look_at_each(tensor, box);
    auto found = indices_.find(&tensor);
    if (found == indices_.end()) {
      found = indices_.emplace(&tensor, OverlapIndex(tensor.chunks)).first;
    }
    return found->second.find(box);
  }

 private:
  static constexpr size_t kFewChunks = 4;  // what one expert has, of 10^6

  static std::vector<Overlap> look_at_each(const TensorEntry& tensor, const Box& box) {
    std::vector<Overlap> overlaps;
    for (uint32_t i = 0; i < tensor.chunks.size(); ++i) {
      if (auto part = intersect(tensor.chunks[i].box, box))
        overlaps.push_back({i, std::move(*part)});
    }
    return overlaps;
  }

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

struct RecordCopies {
  std::vector<CopyOp> found;
  uint32_t segment = 0;  // the one that is looked at
};

void check_box(const TensorSource& source) {
  if (lies_inside(source.box, source.tensor->shape)) return;
  refuse(*source.tensor, ErrorCode::InvalidArgument, "the requested box extends beyond the tensor");
}

// Chunks are disjoint, so a box is covered when what it shares with them adds up to its size.
void add_copies(const TensorEntry& tensor, const Box& box, ChunkIndices& indices,
                RecordCopies& copies) {
  const uint64_t wanted = element_count(box.sizes);
  if (wanted == 0) return;
  uint64_t covered = 0;
  for (Overlap& overlap : indices.find(tensor, box)) {
    covered += element_count(overlap.part.sizes);
    copies.found.push_back({overlap.box, copies.segment, std::move(overlap.part)});
  }
  if (covered < wanted) {
    refuse(tensor, ErrorCode::Corrupt,
           std::to_string(wanted - covered) + " of " + std::to_string(wanted) +
               " elements are in no chunk of the checkpoint");
  }
  if (covered > wanted) refuse(tensor, ErrorCode::Corrupt, "chunks of the tensor overlap");
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
    const auto& [tensor, box] = std::get<TensorSource>(record.source);
    check_box({tensor, box});
    RecordCopies copies;
    add_copies(*tensor, box, indices_, copies);
    check_count(tensor->key, element_count(box.sizes) * bytes_per_element(tensor->dtype),
                record.count_bytes);
    return std::move(copies.found);
  }

  std::vector<CopyOp> copies_of(const std::vector<Segment>& segments, uint64_t record_bytes) {
    RecordCopies copies;
    uint64_t filled_bytes = 0;
    for (const Segment& segment : segments) {
      filled_bytes = end_of(segment, {filled_bytes, record_bytes - filled_bytes});
      const TensorEntry& tensor = *segment.source.tensor;
      for (const Box& box :
           boxes_of_flat_range(segment.source.box, segment.first_element, segment.element_count)) {
        add_copies(tensor, box, indices_, copies);
      }
      ++copies.segment;
    }
    return std::move(copies.found);
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

}  // namespace

Plan make_plan(const Target& target) { return Planner(target).plan(); }

}  // namespace ckpt

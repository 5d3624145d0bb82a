#include "write/shared_reads.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

namespace ckpt {

namespace {

constexpr uint64_t kRecordBytesMin = 64 << 10;  // shorter ones are sooner read twice than shared
constexpr size_t kFilesMax = 128;               // of a set; processes may have 1024 open

// Where a record starts to read: records that start in the same row of a tensor read the same rows.
struct ReadPlace {
  uint32_t file = 0;
  uint64_t tensor_bytes = 0;  // where its first chunk lies
  uint64_t first_element = 0;
  auto operator<=>(const ReadPlace&) const = default;
};

struct SharedRead {
  ReadPlace place;
  size_t record = 0;
};

std::optional<ReadPlace> place_of(const TensorSource& source, uint64_t first_element) {
  const TensorEntry& tensor = *source.tensor;
  if (tensor.chunks.empty()) return std::nullopt;
  const Chunk& chunk = tensor.chunks[0];
  if (!tensor.shape.empty()) {
    first_element += source.box.offsets[0] * row_major_strides(tensor.shape)[0];
  }
  const uint64_t view_offset = chunk.view ? chunk.view->offset : 0;
  return ReadPlace{chunk.region.file,
                   chunk.region.bytes.offset_bytes + chunk.payload_offset_bytes +
                       view_offset * bytes_per_element(tensor.dtype),
                   first_element};
}

std::optional<ReadPlace> place_of(const TargetRecord& record) {
  if (record.count_bytes < kRecordBytesMin) return std::nullopt;
  if (const auto* tensor = std::get_if<TensorSource>(&record.source)) return place_of(*tensor, 0);
  const auto* segments = std::get_if<std::vector<Segment>>(&record.source);
  if (segments == nullptr || segments->empty()) return std::nullopt;
  return place_of((*segments)[0].source, (*segments)[0].first_element);
}

// By place, and there in the order of the plan.
std::vector<SharedRead> find_reads(const Target& target, const Plan& plan,
                                   std::span<const Piece> pieces) {
  std::vector<SharedRead> reads;
  reads.reserve(plan.records.size());
  for (const Piece& piece : pieces) {
    for (size_t r = piece.first_record; r < piece.end_record; ++r) {
      const RecordPlan& record = plan.records[r];
      const auto place =
          place_of(target.files[record.file].archives[record.archive].records[record.record]);
      const bool is_cut = !reads.empty() && reads.back().record == r;
      if (place && !is_cut) reads.push_back({*place, r});
    }
  }
  std::ranges::sort(reads, {},
                    [](const SharedRead& read) { return std::tie(read.place, read.record); });
  return reads;
}

// Files that were united, as long as they are few.
class FileSets {
 public:
  uint32_t first_of(uint32_t file) {
    uint32_t& above = above_.try_emplace(file, file).first->second;
    if (above == file) return file;
    const uint32_t first = first_of(above);
    above_[file] = first;
    return first;
  }

  void unite(uint32_t a, uint32_t b) {
    const auto [first, second] = std::minmax({first_of(a), first_of(b)});
    const size_t count = count_of(first) + count_of(second);
    if (first == second || count > kFilesMax) return;
    above_[second] = first;
    counts_[first] = count;
  }

 private:
  size_t count_of(uint32_t first) { return counts_.try_emplace(first, 1).first->second; }

  std::unordered_map<uint32_t, uint32_t> above_;
  std::unordered_map<uint32_t, size_t> counts_;  // by the first of a set
};

template <class Use>
void for_each_place(std::vector<SharedRead>& reads, Use use) {
  for (auto first = reads.begin(); first != reads.end();) {
    const auto end = std::find_if(
        first, reads.end(), [&](const SharedRead& read) { return read.place != first->place; });
    if (end - first > 1) use(std::span(first, end));
    first = end;
  }
}

}  // namespace

size_t SharedReads::readers_max() const {
  size_t readers = 1;
  for (const std::vector<size_t>& group : groups) readers = std::max(readers, group.size());
  return readers;
}

SharedReads find_shared_reads(const Target& target, const Plan& plan,
                              std::span<const Piece> pieces) {
  std::vector<SharedRead> reads = find_reads(target, plan, pieces);
  FileSets sets;
  const auto set_of = [&](const SharedRead& read) {
    return sets.first_of(plan.records[read.record].file);
  };
  for_each_place(reads, [&](std::span<SharedRead> same) {
    for (const SharedRead& read : same) {
      sets.unite(plan.records[same[0].record].file, plan.records[read.record].file);
    }
  });
  SharedReads shared;
  shared.first_record = plan.records.data();
  for_each_place(reads, [&](std::span<SharedRead> same) {
    std::map<uint32_t, std::vector<size_t>> by_set;
    for (const SharedRead& read : same) by_set[set_of(read)].push_back(read.record);
    for (auto& [set, records] : by_set) {
      if (records.size() < 2) continue;
      if (shared.group_numbers.empty())
        shared.group_numbers.assign(plan.records.size(), SharedReads::kAlone);
      for (const size_t record : records) {
        shared.group_numbers[record] = static_cast<uint32_t>(shared.groups.size());
      }
      shared.groups.push_back(std::move(records));
    }
  });
  std::map<uint32_t, std::vector<uint32_t>> files;
  for (const Piece& piece : pieces) {
    std::vector<uint32_t>& set = files[sets.first_of(piece.file)];
    if (set.empty() || set.back() != piece.file) set.push_back(piece.file);
  }
  for (auto& [first, set] : files) shared.file_sets.push_back(std::move(set));
  return shared;
}

}  // namespace ckpt

#include "write/shared_reads.h"

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ckpt/cast.h>

namespace ckpt {
namespace {

constexpr uint64_t kRecordBytesMin = 64 << 10;  // shorter ones are sooner read twice than shared
constexpr size_t kReadersMin = 4;               // windows of one record that are read at a time
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
                       view_offset * bytes_per_element(stored_type(tensor)),
                   first_element};
}

std::optional<ReadPlace> place_of(const TargetRecord& record) {
  if (record.count_bytes < kRecordBytesMin) return std::nullopt;
  if (const auto* tensor = std::get_if<TensorSource>(&record.source)) return place_of(*tensor, 0);
  const auto* segments = std::get_if<std::vector<Segment>>(&record.source);
  if (segments == nullptr || segments->empty()) return std::nullopt;
  return place_of((*segments)[0].source, (*segments)[0].first_element);
}

// Elements that lie in another order than in the source: each window of them reads the same rows.
bool is_scattered(const TargetRecord& record) {
  const auto* source = std::get_if<TensorSource>(&record.source);
  if (source == nullptr || source->tensor->chunks.empty() || source->box.sizes.empty())
    return false;
  const auto& view = source->tensor->chunks[0].view;
  return view && view->strides.back() != 1 && source->box.sizes.back() > 1;
}

// By place, and there in the order of the plan.
std::vector<SharedRead> find_reads(const Target& target, const Plan& plan,
                                   std::span<const Piece> pieces) {
  std::vector<SharedRead> reads;
  reads.reserve(plan.records.size());
  for (const Piece& piece : pieces) {
    for (size_t r = piece.first_record; r < piece.end_record; ++r) {
      const auto place = place_of(record_of(target, plan.records[r]));
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
void for_each_place(std::vector<SharedRead>& reads, ptrdiff_t least, Use use) {
  for (auto first = reads.begin(); first != reads.end();) {
    const auto end = std::find_if(
        first, reads.end(), [&](const SharedRead& read) { return read.place != first->place; });
    if (end - first >= least) use(std::span(first, end));
    first = end;
  }
}

// A file on its way from its first window to its last.
struct FileLine {
  uint32_t file = 0;
  size_t next_record = 0, end_record = 0;  // of Plan::records
  size_t next_window = 0, end_window = 0;
  bool is_waiting = false;  // the next record, for the others of its group
};

// Takes the records of each file in their order; of a group all at once, when each is the next of
// its file.
class WindowSorter {
 public:
  WindowSorter(const Target& target, const Plan& plan, const SharedReads& shared,
               const WindowMap& windows)
      : target_(target),
        plan_(plan),
        shared_(shared),
        windows_(windows),
        missing_(shared.groups.size()) {
    for (size_t g = 0; g < missing_.size(); ++g) missing_[g] = shared.groups[g].size();
    order_.reserve(windows.count());
  }

  std::vector<uint32_t> sorted() {
    for (const std::vector<uint32_t>& files : shared_.file_sets) take_set(files);
    return std::move(order_);
  }

 private:
  void take_set(const std::vector<uint32_t>& files) {
    lines_.clear();
    for (const uint32_t file : files) lines_.push_back(line_of(file));
    advance_all();
    for (FileLine& line : lines_) {
      // Groups that wait for each other, or two records of one file that share a read.
      while (line.is_waiting) {
        missing_[group_of(line)] = 0;
        advance_all();
      }
    }
  }

  FileLine line_of(uint32_t file) const {
    const auto first_of = [this](uint32_t number) {
      const auto found = std::ranges::lower_bound(plan_.records, number, {}, &RecordPlan::file);
      return static_cast<size_t>(found - plan_.records.begin());
    };
    return {file, first_of(file), first_of(file + 1), windows_.count_before(file, 0),
            windows_.count_before(file + 1, 0)};
  }

  void advance_all() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (FileLine& line : lines_) has_moved |= advance(line);
    }
  }

  // As far as it gets without the others. True if it got further.
  bool advance(FileLine& line) {
    const size_t first_record = line.next_record;
    for (; line.next_record < line.end_record; ++line.next_record) {
      if (group_of(line) != SharedReads::kAlone && !may_pass(line)) break;
      take_up_to(line, end_window_of(line));
    }
    if (line.next_record == line.end_record) take_up_to(line, line.end_window);
    return line.next_record != first_record;
  }

  bool may_pass(FileLine& line) {
    const uint32_t group = group_of(line);
    const bool is_new = !std::exchange(line.is_waiting, true);
    if (missing_[group] != 0 && is_new && --missing_[group] == 0) take_together(group);
    if (missing_[group] != 0) return false;
    line.is_waiting = false;
    return true;
  }

  // Windows of all members, in turn, in equal shares.
  void take_together(uint32_t group) {
    struct Member {
      FileLine& line;
      size_t first_window, count;
    };
    std::vector<Member> members;
    size_t steps = 0;
    for (FileLine& line : lines_) {
      if (!line.is_waiting || group_of(line) != group) continue;
      const size_t end = std::max(end_window_of(line), line.next_window);
      members.push_back({line, line.next_window, end - line.next_window});
      steps = std::max(steps, members.back().count);
    }
    for (size_t step = 1; step <= steps; ++step) {
      for (const auto& [line, first_window, count] : members) {
        take_up_to(line, first_window + step * count / steps);
      }
    }
  }

  uint32_t group_of(const FileLine& line) const {
    return shared_.group_of(plan_.records[line.next_record]);
  }

  // Behind the last window that shows something of the line's next record.
  size_t end_window_of(const FileLine& line) const {
    const RecordPlan& record = plan_.records[line.next_record];
    return windows_.count_before(line.file,
                                 record.offset_bytes + record_of(target_, record).count_bytes);
  }

  void take_up_to(FileLine& line, size_t end_window) {
    for (; line.next_window < end_window; ++line.next_window) {
      order_.push_back(static_cast<uint32_t>(line.next_window));
    }
  }

  const Target& target_;
  const Plan& plan_;
  const SharedReads& shared_;
  const WindowMap& windows_;
  std::vector<size_t> missing_;  // by group: members that are not the next of their files
  std::vector<FileLine> lines_;  // of the set at work
  std::vector<uint32_t> order_;
};

}  // namespace

size_t SharedReads::readers_max() const {
  size_t readers = groups.empty() ? 1 : kReadersMin;
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
  for_each_place(reads, 2, [&](std::span<SharedRead> same) {
    for (const SharedRead& read : same) {
      sets.unite(plan.records[same[0].record].file, plan.records[read.record].file);
    }
  });
  SharedReads shared;
  shared.first_record = plan.records.data();
  const auto is_scattered_in = [&](size_t planned) {
    return is_scattered(record_of(target, plan.records[planned]));
  };
  for_each_place(reads, 1, [&](std::span<SharedRead> same) {
    if (same.size() == 1 && !is_scattered_in(same[0].record)) return;  // as most of 10^6 are
    std::map<uint32_t, std::vector<size_t>> by_set;
    for (const SharedRead& read : same) by_set[set_of(read)].push_back(read.record);
    for (auto& [set, records] : by_set) {
      if (records.size() < 2 && !is_scattered_in(records[0])) continue;
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

std::vector<uint32_t> order_windows(const Target& target, const Plan& plan,
                                    const SharedReads& shared, const WindowMap& windows) {
  return WindowSorter(target, plan, shared, windows).sorted();
}

}  // namespace ckpt

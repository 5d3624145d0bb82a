// Windows of files that share reads, side by side.
#include <algorithm>
#include <utility>

#include "write/shared_reads.h"

namespace ckpt {

namespace {

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
    const uint64_t count_bytes =
        target_.files[record.file].archives[record.archive].records[record.record].count_bytes;
    return windows_.count_before(line.file, record.offset_bytes + count_bytes);
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

std::vector<uint32_t> order_windows(const Target& target, const Plan& plan,
                                    const SharedReads& shared, const WindowMap& windows) {
  return WindowSorter(target, plan, shared, windows).sorted();
}

}  // namespace ckpt

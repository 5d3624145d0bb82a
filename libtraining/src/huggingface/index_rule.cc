#include "huggingface/index_rule.h"

#include <algorithm>
#include <numeric>

namespace optim {
namespace {

using Places = std::vector<VectorPlace>;

// Places of one source with one stride.
struct Run {
  size_t begin = 0, count = 1;
  int64_t stride = 1;
};

int64_t step(const Places& places, size_t at) {
  return static_cast<int64_t>(places[at + 1].index - places[at].index);
}

std::vector<Run> runs_of(const Places& places) {
  std::vector<Run> runs;
  for (size_t at = 0; at < places.size();) {
    Run run{at, 1, 1};
    while (at + run.count < places.size()) {
      const size_t next = at + run.count;
      if (places[next].source != places[at].source) break;
      if (run.count > 1 && step(places, next - 1) != run.stride) break;
      if (run.count == 1) run.stride = step(places, at);
      ++run.count;
    }
    at += run.count;
    runs.push_back(run);
  }
  return runs;
}

// Unknown places between two, or at an end, go on as their neighbours do.
void fill_unknown(Places& places) {
  std::vector<size_t> known;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].is_known()) known.push_back(i);
  }
  if (known.empty()) return;
  const auto fill = [&](size_t from, size_t begin, size_t end, int64_t stride) {
    for (size_t i = begin; i < end; ++i) {
      const auto steps = static_cast<int64_t>(i) - static_cast<int64_t>(from);
      places[i] = {places[from].source, places[from].index + static_cast<uint64_t>(steps * stride)};
    }
  };
  for (size_t k = 0; k + 1 < known.size(); ++k) {
    const size_t gap = known[k + 1] - known[k];
    if (gap < 2) continue;
    const auto rise = static_cast<int64_t>(places[known[k + 1]].index - places[known[k]].index);
    const bool is_even = places[known[k]].source == places[known[k + 1]].source &&
                         rise % static_cast<int64_t>(gap) == 0;
    fill(known[k], known[k] + 1, known[k + 1], is_even ? rise / static_cast<int64_t>(gap) : 1);
  }
  const bool has_two = known.size() > 1 && known[1] == known[0] + 1;
  fill(known.front(), 0, known.front(), has_two ? step(places, known[0]) : 1);
  const size_t last = known.back();
  const bool has_step = last > 0 && places[last - 1].source == places[last].source;
  fill(last, last + 1, places.size(), has_step ? step(places, last - 1) : 1);
}

bool has_one_length(const std::vector<Run>& runs) {
  return std::ranges::all_of(runs, [&](const Run& run) {
    return run.count == runs[0].count && run.stride == runs[0].stride;
  });
}

Places heads_of(const Places& places, const std::vector<Run>& runs) {
  Places heads;
  for (const Run& run : runs) heads.push_back(places[run.begin]);
  return heads;
}

// Runs cut to one length, where there is such a one.
std::vector<Run> cut_evenly(const std::vector<Run>& runs) {
  size_t length = 0;
  for (const Run& run : runs) length = std::gcd(length, run.count);
  std::vector<Run> cut;
  for (const Run& run : runs) {
    for (size_t at = 0; at < run.count; at += length) {
      cut.push_back({run.begin + at, length, run.stride});
    }
  }
  return cut;
}

void put_in_front(std::vector<IndexAxis>& axes, IndexAxis axis) { axes.insert(axes.begin(), axis); }

// One part, of one source; nullopt: it is none.
std::optional<IndexPart> one_part(Places places) {
  std::vector<IndexAxis> axes;
  while (true) {
    const std::vector<Run> runs = runs_of(places);
    if (runs.size() > 1 && (!has_one_length(runs) || runs[0].count == 1)) return std::nullopt;
    const int64_t stride = runs[0].count == 1 ? 1 : runs[0].stride;
    if (stride <= 0) return std::nullopt;
    put_in_front(axes, {runs[0].count, static_cast<uint64_t>(stride)});
    if (runs.size() == 1) return IndexPart{places[0].source, places[0].index, std::move(axes)};
    places = heads_of(places, runs);
  }
}

// Runs that repeat in groups of `period`, each of which goes on evenly from group to group.
std::optional<IndexRule> periodic(const Places& places, const std::vector<Run>& runs,
                                  size_t period) {
  IndexRule rule{{}, {}};
  for (size_t place = 0; place < period; ++place) {
    Places heads;
    for (size_t at = place; at < runs.size(); at += period) {
      if (runs[at].count != runs[place].count ||
          (runs[at].count > 1 && runs[at].stride != runs[place].stride)) {
        return std::nullopt;
      }
      heads.push_back(places[runs[at].begin]);
    }
    const bool is_plain = runs[place].count == 1;
    if (!is_plain && runs[place].stride <= 0) return std::nullopt;
    auto part = one_part(std::move(heads));
    if (!part) return std::nullopt;
    if (runs.size() == period) part->axes.clear();
    const auto stride = is_plain ? uint64_t{1} : static_cast<uint64_t>(runs[place].stride);
    part->axes.push_back({runs[place].count, stride});
    if (rule.joined && part->axes.size() != rule.parts[0].axes.size()) return std::nullopt;
    rule.joined = part->axes.size() - 1;
    for (size_t axis = 0; !rule.parts.empty() && axis < *rule.joined; ++axis) {
      if (part->axes[axis].size != rule.parts[0].axes[axis].size) return std::nullopt;
    }
    rule.parts.push_back(std::move(*part));
  }
  return rule;
}

constexpr size_t kPartsMax = 16;

// Of the shortest period that there is.
std::optional<IndexRule> in_parts(const Places& places, const std::vector<Run>& runs) {
  for (size_t period = 2; period <= std::min(kPartsMax, runs.size()); ++period) {
    if (runs.size() % period != 0) continue;
    if (auto rule = periodic(places, runs, period)) return rule;
  }
  return std::nullopt;
}

std::vector<Run> single_runs(size_t count) {
  std::vector<Run> runs(count);
  for (size_t i = 0; i < count; ++i) runs[i].begin = i;
  return runs;
}

}  // namespace

std::optional<IndexRule> find_index_rule(Places places) {
  fill_unknown(places);
  if (places.empty() || !places[0].is_known()) return std::nullopt;
  std::vector<IndexAxis> inner;
  while (true) {
    std::vector<Run> runs = runs_of(places);
    const bool is_even = runs.size() == 1 || (has_one_length(runs) && runs[0].count > 1);
    if (!is_even || runs[0].stride <= 0) {
      auto rule = in_parts(places, runs);
      std::vector<Run> cut = cut_evenly(runs);
      const bool can_cut = cut[0].count > 1 && has_one_length(cut) && cut[0].stride > 0;
      if (!rule && !can_cut) rule = in_parts(places, single_runs(places.size()));
      if (rule) {
        for (IndexPart& part : rule->parts) {
          part.axes.insert(part.axes.end(), inner.begin(), inner.end());
        }
        return rule;
      }
      if (!can_cut) return std::nullopt;
      runs = std::move(cut);
    }
    const int64_t stride = runs[0].count == 1 ? 1 : runs[0].stride;
    put_in_front(inner, {runs[0].count, static_cast<uint64_t>(stride)});
    if (runs.size() == 1) return IndexRule{{{places[0].source, places[0].index, inner}}, {}};
    places = heads_of(places, runs);
  }
}

std::optional<Radix> radix_of(const IndexPart& part, uint64_t source_size) {
  std::vector<size_t> order;
  for (size_t i = 0; i < part.axes.size(); ++i) {
    if (part.axes[i].size > 1) order.push_back(i);
  }
  std::ranges::sort(order, std::greater(), [&](size_t i) { return part.axes[i].stride; });
  for (const bool is_of_rows : {false, true}) {
    Radix radix;
    uint64_t above = source_size;
    const uint64_t base = is_of_rows ? 0 : part.base;
    if (is_of_rows && !order.empty()) {
      above = part.axes[order[0]].size * part.axes[order[0]].stride;
    } else if (is_of_rows) {
      above = 1;
    }
    radix.first_row = is_of_rows ? part.base : 0;
    radix.row_count = above;
    if (radix.first_row + above > source_size) continue;
    bool is_whole = true;
    for (const size_t i : order) {
      const auto& [size, stride] = part.axes[i];
      is_whole &= above % stride == 0;
      const uint64_t first = base % above / stride;
      radix.axes.push_back({above / stride, first, size, i});
      is_whole &= first + size <= above / stride;
      above = stride;
    }
    if (!is_whole) continue;
    if (above > 1) radix.axes.push_back({above, base % above, 1, RadixAxis::kNone});
    return radix;
  }
  return std::nullopt;
}

std::optional<IndexRule> with_radix(IndexRule rule, const std::vector<uint64_t>& source_sizes) {
  const auto fits = [&](const IndexRule& one) {
    return std::ranges::all_of(one.parts, [&](const IndexPart& part) {
      return radix_of(part, source_sizes[part.source]).has_value();
    });
  };
  if (fits(rule)) return rule;
  if (rule.joined) return std::nullopt;
  const IndexPart& whole = rule.parts[0];
  for (size_t axis = 0; axis < whole.axes.size(); ++axis) {
    const auto [size, stride] = whole.axes[axis];
    if (size == 1 || size > kPartsMax) continue;
    IndexRule cut{{}, axis};
    for (uint64_t i = 0; i < size; ++i) {
      cut.parts.push_back(whole);
      cut.parts.back().base += i * stride;
      cut.parts.back().axes[axis] = {1, 1};
    }
    if (fits(cut)) return cut;
  }
  return std::nullopt;
}

std::optional<IndexRule> cut_at_dims(IndexRule rule, const std::vector<uint64_t>& dims) {
  size_t axis = 0;
  for (const uint64_t dim : dims) {
    uint64_t left = dim;
    while (left > 1 && axis < rule.parts[0].axes.size()) {
      const bool is_joined = rule.joined == axis;
      uint64_t size = is_joined ? 0 : rule.parts[0].axes[axis].size;
      if (is_joined) {
        for (const IndexPart& part : rule.parts) size += part.axes[axis].size;
      }
      if (left % size != 0) {
        if (is_joined || size % left != 0) return std::nullopt;
        for (IndexPart& part : rule.parts) {
          const auto [whole, stride] = part.axes[axis];
          part.axes[axis].size = whole / left;
          part.axes[axis].stride = stride;
          const IndexAxis outer{left, stride * (whole / left)};
          part.axes.insert(part.axes.begin() + static_cast<std::ptrdiff_t>(axis), outer);
        }
        if (rule.joined && *rule.joined > axis) ++*rule.joined;
        size = left;
      }
      left /= size;
      ++axis;
    }
    if (left != 1) return std::nullopt;
  }
  return rule;
}

}  // namespace optim

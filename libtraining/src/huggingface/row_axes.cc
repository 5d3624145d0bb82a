#include "huggingface/row_axes.h"

#include <algorithm>
#include <utility>

#include <ckpt/error.h>

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Extents;

const std::string kStacked = "experts";  // the axis of the target that stacks experts
constexpr char kJoined = '+';  // behind the axis along which parts follow each other, or alone

// "(groups qkv head) hidden": the axes of each dimension.
using Axes = std::vector<std::vector<std::string>>;

Axes parse_axes(const std::string& pattern, const TensorRow& row) {
  Axes axes;
  std::string name;
  bool is_open = false, is_bad = false;
  for (const char c : pattern + " ") {
    if (c != ' ' && c != '(' && c != ')') {
      name += c;
      continue;
    }
    if (!name.empty() && !is_open) axes.emplace_back();
    if (!name.empty()) axes.back().push_back(std::exchange(name, {}));
    if (c == ' ') continue;
    is_bad |= is_open == (c == '(');
    is_open = c == '(';
    if (is_open) axes.emplace_back();
  }
  if (!is_bad && !is_open && !axes.empty()) return axes;
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = row.target},
              "'" + ckpt::escaped(pattern) + "' names no axes", "such as \"(groups head) hidden\"");
}

[[noreturn]] void refuse_axes(const TensorRow& row, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = row.target}, problem);
}

// The numbers of "FIRST:END" and more.
std::vector<uint64_t> parse_range(const std::string& range, const NameScope& scope) {
  std::vector<uint64_t> numbers;
  for (size_t at = 0; at != range.npos;) {
    const size_t begin = range.find_first_not_of(' ', at);
    const size_t colon = range.find(':', at);
    if (begin == range.npos) return {};
    numbers.push_back(scope.size(range.substr(begin, colon - begin)));
    at = colon == range.npos ? colon : colon + 1;
  }
  return numbers;
}

[[noreturn]] void refuse_range(const TensorRow& row, const std::string& range,
                               const std::string& of) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = row.target},
              "needs " + ckpt::escaped(range) + " of " + of);
}

void slice_axes(const TensorRow& row, const RowPart& part, const NameScope& scope,
                SourceAxes& axes) {
  for (const auto& [name, range] : part.slice) {
    const auto axis = static_cast<size_t>(std::ranges::find(axes.names, name) - axes.names.begin());
    const std::vector<uint64_t> ends = parse_range(range, scope);
    if (axis == axes.names.size() || ends.size() != 2) {
      throw Error(
          ErrorCode::Corrupt, {.file = {}, .key = row.target},
          "slices '" + ckpt::escaped(name) + "', which is not an axis, or without FIRST:END");
    }
    if (ends[0] >= ends[1] || ends[1] > axes.sizes[axis]) {
      refuse_range(row, range,
                   std::to_string(axes.sizes[axis]) + " on axis " + ckpt::escaped(name));
    }
    axes.first[axis] = ends[0];
    axes.count[axis] = ends[1] - ends[0];
  }
}

void take_rows(const TensorRow& row, const RowPart& part, const NameScope& scope,
               SourceAxes& axes) {
  const uint64_t count = ckpt::element_count(axes.of_dim.front());
  axes.row_count = count;
  if (part.rows.empty()) return;
  const std::vector<uint64_t> ends = parse_range(part.rows, scope);
  if (ends.size() != 3) {
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = row.target},
                "'rows' is not FIRST:END:COUNT");
  }
  if (ends[0] > ends[1] || ends[1] > ends[2] || ends[1] - ends[0] != count) {
    refuse_range(row, part.rows, "rows, for axes of " + std::to_string(count));
  }
  axes.first_row = ends[0];
  axes.row_count = ends[2];
}

SourceAxes source_axes(const TensorRow& row, const RowPart& part, const NameScope& scope) {
  SourceAxes axes;
  for (const auto& names : parse_axes(part.view, row)) {
    axes.of_dim.emplace_back();
    for (const std::string& name : names) {
      axes.names.push_back(name);
      axes.sizes.push_back(scope.size(name));
      axes.of_dim.back().push_back(axes.sizes.back());
    }
  }
  axes.first.resize(axes.sizes.size());
  axes.count = axes.sizes;
  slice_axes(row, part, scope, axes);
  take_rows(row, part, scope, axes);
  return axes;
}

TargetAxes target_axes(const TensorRow& row, const RowPart& part, const SourceAxes& source,
                       size_t expert_count) {
  TargetAxes target;
  std::vector<bool> is_used(source.names.size());
  for (const auto& names : parse_axes(part.as, row)) {
    target.of_dim.push_back(names.size());
    for (std::string name : names) {
      if (name.back() == kJoined) {
        if (target.joined != SIZE_MAX) refuse_axes(row, "joins parts along two axes");
        target.joined = target.sources.size();
        name.pop_back();
      }
      const auto found = std::ranges::find(source.names, name);
      const auto axis = static_cast<size_t>(found - source.names.begin());
      const bool is_known = axis < is_used.size() && !is_used[axis];
      if (!is_known && name != kStacked && !name.empty()) {
        refuse_axes(row, "has the axis '" + ckpt::escaped(name) + "' twice, or 'view' has it not");
      }
      if (is_known) is_used[axis] = true;
      target.sources.push_back(is_known       ? axis
                               : name.empty() ? TargetAxes::kOfParts
                                              : TargetAxes::kOfExperts);
      target.sizes.push_back(is_known ? source.count[axis] : name.empty() ? 1 : expert_count);
    }
  }
  target.first.resize(target.sizes.size());
  if (std::ranges::find(is_used, false) == is_used.end()) return target;
  refuse_axes(row, "'as' lacks an axis of 'view'");
}

}  // namespace

Joined join_parts(const TensorRow& row, const NameScope& scope, size_t expert_count) {
  Joined joined;
  for (const RowPart& part : row.parts) {
    joined.sources.push_back(source_axes(row, part, scope));
    TargetAxes next = target_axes(row, part, joined.sources.back(), expert_count);
    if (joined.targets.empty()) {
      joined.sizes = next.sizes;
    } else {
      const size_t along = next.joined;
      Extents same = joined.sizes;
      if (along < same.size()) same[along] = next.sizes[along];
      if (along == SIZE_MAX || along != joined.targets.back().joined || same != next.sizes ||
          next.of_dim != joined.targets.back().of_dim) {
        refuse_axes(row, "has parts that do not follow each other along one axis");
      }
      next.first[along] = joined.sizes[along];
      joined.sizes[along] += next.sizes[along];
    }
    joined.targets.push_back(std::move(next));
  }
  auto size = joined.sizes.begin();
  for (const size_t count : joined.targets.front().of_dim) {
    joined.shape.push_back(
        ckpt::element_count(Extents(size, size + static_cast<ptrdiff_t>(count))));
    size += static_cast<ptrdiff_t>(count);
  }
  return joined;
}

Extents shape_of(const SourceAxes& axes) {
  Extents shape;
  for (const Extents& sizes : axes.of_dim) shape.push_back(ckpt::element_count(sizes));
  shape.front() = axes.row_count;
  return shape;
}

}  // namespace optim

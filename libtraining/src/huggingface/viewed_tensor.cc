#include "huggingface/viewed_tensor.h"

#include <algorithm>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/flat_range.h>
#include <ckpt/printed.h>

#include "state/words.h"

namespace optim {
namespace {

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
      refuse_axes(
          row, "slices '" + ckpt::escaped(name) + "', which is not an axis, or without FIRST:END");
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
  if (ends.size() != 3) refuse_axes(row, "'rows' is not FIRST:END:COUNT");
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

void require_shape(const TensorEntry& source, const SourceAxes& axes, const RowPart& part) {
  const Extents wanted = shape_of(axes);
  if (source.shape == wanted) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = source.key},
              "has the shape " + ckpt::shape_text(source.shape) + ", by args it has " +
                  ckpt::shape_text(wanted) + " (" + part.view + ")");
}

// Boxes of axes that make up a box of the source: one for each way to take one of each dimension.
std::vector<Box> boxes_of_axes(const Box& box, const SourceAxes& axes) {
  std::vector<Box> made(1);
  for (size_t dim = 0; dim < axes.of_dim.size(); ++dim) {
    std::vector<Box> longer;
    for (const Box& front : made) {
      for (const Box& back : ckpt::boxes_of_flat_range(ckpt::whole(axes.of_dim[dim]),
                                                       box.offsets[dim], box.sizes[dim])) {
        longer.push_back(front);
        for (const uint64_t offset : back.offsets) longer.back().offsets.push_back(offset);
        for (const uint64_t size : back.sizes) longer.back().sizes.push_back(size);
      }
    }
    made = std::move(longer);
  }
  return made;
}

// How the elements of a chunk lie in its storage, along the source's axes.
struct Layout {
  uint64_t offset = 0;  // of index 0 on all axes; it may lie before the chunk, modulo 2^64
  Extents strides;
};

Layout layout_of(const Chunk& chunk, const SourceAxes& axes) {
  const Extents strides =
      chunk.view ? chunk.view->strides : ckpt::row_major_strides(chunk.box.sizes);
  Layout layout{chunk.view ? chunk.view->offset : 0, {}};
  for (size_t dim = 0; dim < axes.of_dim.size(); ++dim) {
    layout.offset -= chunk.box.offsets[dim] * strides[dim];
    if (dim == 0) layout.offset += axes.first_row * strides[dim];
    for (const uint64_t stride : ckpt::row_major_strides(axes.of_dim[dim])) {
      layout.strides.push_back(stride * strides[dim]);
    }
  }
  return layout;
}

void add_chunks(const ViewedPart& part, const SourceAxes& axes, const TargetAxes& target,
                TensorEntry& entry) {
  const Box wanted{axes.first, axes.count};
  Box rows = ckpt::whole(part.source->shape);
  rows.offsets[0] = axes.first_row;
  rows.sizes[0] = ckpt::element_count(axes.of_dim[0]);
  for (const Chunk& chunk : part.source->chunks) {
    auto taken = ckpt::intersect(chunk.box, rows);
    if (!taken) continue;
    taken->offsets[0] -= axes.first_row;
    const Layout layout = layout_of(chunk, axes);
    for (const Box& box : boxes_of_axes(*taken, axes)) {
      const auto shared = ckpt::intersect(box, wanted);
      if (!shared) continue;
      Chunk made{{}, chunk.region, chunk.payload_offset_bytes};
      ckpt::StridedView view{layout.offset, {}};
      for (size_t axis = 0; axis < axes.sizes.size(); ++axis) {
        view.offset += shared->offsets[axis] * layout.strides[axis];
      }
      for (size_t i = 0; i < target.sources.size(); ++i) {
        const size_t axis = target.sources[i];
        const bool is_known = axis < axes.sizes.size();
        const uint64_t place = is_known ? shared->offsets[axis] - axes.first[axis]
                               : axis == TargetAxes::kOfExperts ? part.expert
                                                                : 0;
        made.box.offsets.push_back(target.first[i] + place);
        made.box.sizes.push_back(is_known ? shared->sizes[axis] : 1);
        view.strides.push_back(is_known ? layout.strides[axis] : 1);
      }
      made.view = std::make_shared<const ckpt::StridedView>(std::move(view));
      entry.chunks.push_back(std::move(made));
    }
  }
}

// Whether the target is the source as it is.
bool is_rename(const TensorRow& row, const SourceAxes& axes) {
  const RowPart& part = row.parts.front();
  return row.parts.size() == 1 && part.rows.empty() && part.as == part.view &&
         axes.count == axes.sizes;
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

void require_float(const TensorEntry& weight, const char* hint) {
  if (ckpt::can_round(weight.dtype) || weight.dtype == DType::Float64) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = weight.key},
              "is of type " + std::string(ckpt::name(weight.dtype)) +
                  ", which means nothing without what scales it",
              hint);
}

ViewedTensor view_tensor(const TensorRow& row, const NameScope& scope,
                         const std::vector<ViewedPart>& parts) {
  const Joined joined = join_parts(row, scope, parts.size() / row.parts.size());
  const TensorRef& first = parts.front().source;
  for (const ViewedPart& part : parts) {
    require_shape(*part.source, joined.sources[part.part], row.parts[part.part]);
    if (part.source->dtype == first->dtype) continue;
    throw Error(
        ErrorCode::Unsupported, {.file = {}, .key = part.source->key},
        "has a different type from " + ckpt::escaped(first->key) + ", with which it is joined");
  }
  if (is_rename(row, joined.sources.front())) return {first, first->shape};
  auto entry = std::make_shared<TensorEntry>();
  entry->key = first->key;
  entry->dtype = first->dtype;
  entry->shape = joined.sizes;
  for (const ViewedPart& part : parts) {
    add_chunks(part, joined.sources[part.part], joined.targets[part.part], *entry);
  }
  return {std::move(entry), joined.shape};
}

}  // namespace optim

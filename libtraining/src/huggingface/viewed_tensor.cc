#include "huggingface/viewed_tensor.h"

#include <algorithm>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/flat_range.h>

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Chunk;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Extents;

const std::string kStacked = "experts";  // the axis of the target that stacks parts

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

// The source's axes one after the other, and which part of each the target has.
struct SourceAxes {
  std::vector<std::string> names;
  Extents sizes, first, count;
  std::vector<Extents> of_dim;  // sizes, by dimension of the source
};

void slice_axes(const TensorRow& row, const NameScope& scope, SourceAxes& axes) {
  for (const auto& [name, range] : row.slice) {
    const auto axis = static_cast<size_t>(std::ranges::find(axes.names, name) - axes.names.begin());
    const size_t colon = range.find(':');
    if (axis == axes.names.size() || colon == range.npos) {
      throw Error(
          ErrorCode::Corrupt, {.file = {}, .key = row.target},
          "slices '" + ckpt::escaped(name) + "', which is not an axis, or without FIRST:END");
    }
    const uint64_t first = scope.size(range.substr(0, colon));
    const uint64_t end = scope.size(range.substr(range.find_first_not_of(' ', colon + 1)));
    if (first >= end || end > axes.sizes[axis]) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = row.target},
                  "needs " + range + " of the " + std::to_string(axes.sizes[axis]) + " on axis " +
                      ckpt::escaped(name));
    }
    axes.first[axis] = first;
    axes.count[axis] = end - first;
  }
}

SourceAxes source_axes(const TensorRow& row, const NameScope& scope) {
  SourceAxes axes;
  for (const auto& names : parse_axes(row.view, row)) {
    axes.of_dim.emplace_back();
    for (const std::string& name : names) {
      axes.names.push_back(name);
      axes.sizes.push_back(scope.size(name));
      axes.of_dim.back().push_back(axes.sizes.back());
    }
  }
  axes.first.resize(axes.sizes.size());
  axes.count = axes.sizes;
  slice_axes(row, scope, axes);
  return axes;
}

void require_shape(const ckpt::TensorEntry& source, const SourceAxes& axes, const TensorRow& row) {
  Extents wanted;
  for (const Extents& sizes : axes.of_dim) wanted.push_back(ckpt::element_count(sizes));
  if (source.shape == wanted) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = source.key},
              "has the shape " + shape_text(source.shape) + ", by args it has " +
                  shape_text(wanted) + " (" + row.view + ")");
}

// Where the target's axes come from.
struct TargetAxes {
  static constexpr size_t kOfParts = SIZE_MAX;
  std::vector<size_t> sources;  // an axis of the source, or kOfParts
  Extents sizes;
  Extents shape;  // axes of one dimension joined
};

TargetAxes target_axes(const TensorRow& row, const SourceAxes& source, size_t part_count) {
  TargetAxes target;
  std::vector<bool> is_used(source.names.size());
  for (const auto& names : parse_axes(row.as, row)) {
    uint64_t joined = 1;
    for (const std::string& name : names) {
      const auto found = std::ranges::find(source.names, name);
      const auto axis = static_cast<size_t>(found - source.names.begin());
      const bool is_known = axis < is_used.size() && !is_used[axis];
      if (!is_known && name != kStacked) {
        throw Error(ErrorCode::Corrupt, {.file = {}, .key = row.target},
                    "has the axis '" + ckpt::escaped(name) + "' twice, or 'view' has it not");
      }
      if (is_known) is_used[axis] = true;
      target.sources.push_back(is_known ? axis : TargetAxes::kOfParts);
      target.sizes.push_back(is_known ? source.count[axis] : part_count);
      joined *= target.sizes.back();
    }
    target.shape.push_back(joined);
  }
  if (std::ranges::find(is_used, false) == is_used.end()) return target;
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = row.target}, "'as' lacks an axis of 'view'");
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
    for (const uint64_t stride : ckpt::row_major_strides(axes.of_dim[dim])) {
      layout.strides.push_back(stride * strides[dim]);
    }
  }
  return layout;
}

void add_chunks(const ViewedPart& part, const SourceAxes& axes, const TargetAxes& target,
                ckpt::TensorEntry& entry) {
  const Box wanted{axes.first, axes.count};
  for (const Chunk& chunk : part.source->chunks) {
    const Layout layout = layout_of(chunk, axes);
    for (const Box& box : boxes_of_axes(chunk.box, axes)) {
      const auto shared = ckpt::intersect(box, wanted);
      if (!shared) continue;
      Chunk made{{}, chunk.region, chunk.payload_offset_bytes};
      ckpt::StridedView view{layout.offset, {}};
      for (size_t axis = 0; axis < axes.sizes.size(); ++axis) {
        view.offset += shared->offsets[axis] * layout.strides[axis];
      }
      for (const size_t axis : target.sources) {
        const bool is_part = axis == TargetAxes::kOfParts;
        made.box.offsets.push_back(is_part ? part.expert.value_or(0)
                                           : shared->offsets[axis] - axes.first[axis]);
        made.box.sizes.push_back(is_part ? 1 : shared->sizes[axis]);
        view.strides.push_back(is_part ? 1 : layout.strides[axis]);
      }
      made.view = std::make_shared<const ckpt::StridedView>(std::move(view));
      entry.chunks.push_back(std::move(made));
    }
  }
}

}  // namespace

std::string shape_text(const Extents& shape) {
  std::string text = "[";
  for (const uint64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

ViewedTensor view_tensor(const TensorRow& row, const NameScope& scope,
                         const std::vector<ViewedPart>& parts) {
  const SourceAxes axes = source_axes(row, scope);
  const TargetAxes target = target_axes(row, axes, parts.size());
  const TensorRef& first = parts.front().source;
  for (const ViewedPart& part : parts) {
    require_shape(*part.source, axes, row);
    if (part.source->dtype == first->dtype) continue;
    throw Error(
        ErrorCode::Unsupported, {.file = {}, .key = part.source->key},
        "has a different type from " + ckpt::escaped(first->key) + ", with which it is stacked");
  }
  if (row.as == row.view && axes.count == axes.sizes) return {first, first->shape};
  auto entry = std::make_shared<ckpt::TensorEntry>();
  entry->key = first->key;
  entry->dtype = first->dtype;
  entry->shape = target.sizes;
  for (const ViewedPart& part : parts) add_chunks(part, axes, target, *entry);
  return {std::move(entry), target.shape};
}

}  // namespace optim

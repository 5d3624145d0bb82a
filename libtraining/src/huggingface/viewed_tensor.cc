#include "huggingface/viewed_tensor.h"

#include <utility>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/flat_range.h>
#include <ckpt/printed.h>

#include "huggingface/row_axes.h"

namespace optim {
namespace {

using ckpt::Box;
using ckpt::Chunk;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Extents;

void require_shape(const ckpt::TensorEntry& source, const SourceAxes& axes, const RowPart& part) {
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
                ckpt::TensorEntry& entry) {
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

void require_float(const ckpt::TensorEntry& weight, const char* hint) {
  if (ckpt::can_round(weight.dtype) || weight.dtype == ckpt::DType::Float64) return;
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
  auto entry = std::make_shared<ckpt::TensorEntry>();
  entry->key = first->key;
  entry->dtype = first->dtype;
  entry->shape = joined.sizes;
  for (const ViewedPart& part : parts) {
    add_chunks(part, joined.sources[part.part], joined.targets[part.part], *entry);
  }
  return {std::move(entry), joined.shape};
}

}  // namespace optim

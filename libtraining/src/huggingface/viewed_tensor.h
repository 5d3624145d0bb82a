#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/extents.h>
#include <training/training_state.h>

#include "huggingface/name_table.h"

namespace optim {

// A tensor of the target: the source's elements in another order, as chunks that are views of the
// source's own. No byte is read for it.
struct ViewedTensor {
  TensorRef entry;      // a dimension for each axis of the target, or the source as it is
  ckpt::Extents shape;  // as the target states it, where axes are joined: the same elements
};

// A tensor of the source, of which it has a part.
struct ViewedPart {
  TensorRef source;
  uint32_t expert = 0;  // its place on the axis `experts`
  size_t part = 0;      // of TensorRow::parts
};

// The tensor that a row makes of its parts, by the sizes that `scope` knows. Throws Unsupported,
// with the source's key, where a shape is another than the row's axes say, or types differ.
ViewedTensor view_tensor(const TensorRow& row, const NameScope& scope,
                         const std::vector<ViewedPart>& parts);

// Throws Unsupported for a tensor of eight bits: what scales it is beside it.
void require_float(const ckpt::TensorEntry& weight, const char* hint);

// The source's axes one after the other, and which part of each the target has.
struct SourceAxes {
  std::vector<std::string> names;
  ckpt::Extents sizes, first, count;
  std::vector<ckpt::Extents> of_dim;      // sizes, by dimension of the source
  uint64_t first_row = 0, row_count = 0;  // those of the first dimension that the axes are of
};

// Where the target's axes come from.
struct TargetAxes {
  static constexpr size_t kOfExperts = SIZE_MAX, kOfParts = SIZE_MAX - 1;
  std::vector<size_t> sources;  // an axis of the source, or one of these
  ckpt::Extents sizes, first;   // of the part in the whole
  std::vector<size_t> of_dim;   // how many axes a dimension has
  size_t joined = SIZE_MAX;     // the axis along which parts follow each other
};

// How the parts of a row make up its target.
struct Joined {
  std::vector<SourceAxes> sources;
  std::vector<TargetAxes> targets;
  ckpt::Extents sizes, shape;  // of the target, by axes and with axes of one dimension joined
};

// `expert_count`: how many tensors of experts the row stacks. Throws Corrupt for axes that are
// none, Unsupported for a slice that the sizes do not have.
Joined join_parts(const TensorRow& row, const NameScope& scope, size_t expert_count);

// Of a part's tensor in the model.
ckpt::Extents shape_of(const SourceAxes& axes);

}  // namespace optim

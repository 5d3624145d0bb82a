#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
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

}  // namespace optim

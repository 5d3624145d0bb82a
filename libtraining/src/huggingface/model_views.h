#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ckpt/catalog.h>

#include "huggingface/name_table.h"

namespace optim {

// What a tensor of a Hugging Face folder has of one tensor of the model, and where.
struct GivenPart {
  size_t tensor = 0;    // of the model: whose chunks these are
  ckpt::Extents shape;  // of that tensor, as the table has it
  std::vector<ckpt::Chunk> chunks;
};

// A table's row read backwards: which boxes of the model's tensors the elements of `found` are, as
// views of its storage. `parts`: of the row, for each expert in order, which tensor of the model
// each is. No byte is read. Throws Unsupported, with the key, where a shape is another than the
// row's axes say.
struct GivenTensor {
  const ckpt::TensorEntry& found;
  const TensorRow& row;
};
std::vector<GivenPart> parts_of(const GivenTensor& given, const NameScope& scope,
                                const std::vector<size_t>& parts);

}  // namespace optim

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ckpt/catalog.h>

#include "huggingface/name_table.h"

namespace optim {

// A tensor that a table describes, of one layer and one expert where its name says so.
struct TableTensor {
  // What it has of one tensor of the model.
  struct Part {
    std::vector<std::string> names;  // the model's names for it: one of them is there
    uint32_t expert = 0;             // its place on the axis `experts`
    size_t part = 0;                 // of TensorRow::parts
  };
  std::string key;
  const TensorRow* row = nullptr;
  std::vector<Part> parts = {};
  float added = 0;  // to each element
};

// All of them, in the table's order: those without a layer first. Throws Unsupported for values
// that do not fit.
void for_each_tensor(const NameTable& table, const NameScope& scope,
                     const std::function<void(TableTensor)>& visit);

// The first condition that does not hold; null: all do.
const std::pair<const std::string, std::string>* first_unmet(
    const std::map<std::string, std::string>& conditions, const NameScope& scope);
// Throws Unsupported for the first that a table needs. `who`: "args".
void require_conditions(const NameTable& table, const NameScope& scope, const std::string& who);

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

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <training/contents.h>

// What of a model is how large.
namespace optim {

// Sizes of a part of a model. Masters and states count as the optimizer's.
struct ModuleSize {
  uint64_t parameter_count = 0;
  uint64_t model_bytes = 0;
  uint64_t optimizer_bytes = 0;
  auto operator<=>(const ModuleSize&) const = default;
};

struct ModuleRow {
  std::string name;          // "decoder.layers.0-1", "embedding"
  ModuleSize size;           // of all layers of the row
  uint32_t layer_count = 0;  // 0: no layer
};

struct ModuleTable {
  std::vector<ModuleRow> rows;
  uint64_t unnamed_optimizer_bytes = 0;  // of state that the files give to no parameter
};

// The modules of a model: each layer of a numbered list, and beside them what is not in a list, as
// far down as it stands beside one. Layers of equal sizes are one row. The largest first, equal
// ones in natural order.
ModuleTable make_module_table(std::span<const LogicalTensor> tensors);

// What all of these rows have together.
ModuleSize sum_of(std::span<const ModuleRow> rows);

// The elements of the model's floating-point tensors.
uint64_t count_parameters(std::span<const LogicalTensor> tensors);

// What a file only numbers goes by its key.
inline const std::string& name_or_key(const LogicalTensor& tensor) {
  return tensor.name.empty() && tensor.value != nullptr ? tensor.value->key : tensor.name;
}

// The model's largest tensors, at most `limit`; of all tensors where none is the model's.
std::vector<const LogicalTensor*> largest_tensors(std::span<const LogicalTensor> tensors,
                                                  size_t limit);

}  // namespace optim

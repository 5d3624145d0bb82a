#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <optim/contents.h>

namespace tools::inspect {

// Sizes of a part of a model. Masters and states count as the optimizer's.
struct ModuleSize {
  uint64_t parameter_count = 0;
  uint64_t model_bytes = 0;
  uint64_t optimizer_bytes = 0;
  bool operator==(const ModuleSize&) const = default;
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
ModuleTable make_module_table(std::span<const optim::LogicalTensor> tensors);

// The elements of the model's floating-point tensors.
uint64_t count_parameters(std::span<const optim::LogicalTensor> tensors);

// The model's largest tensors, at most `limit`; of all tensors where none is the model's.
std::vector<const optim::LogicalTensor*> largest_tensors(
    std::span<const optim::LogicalTensor> tensors, size_t limit);

// Whether `a` comes before `b` where numbers in them count as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace tools::inspect

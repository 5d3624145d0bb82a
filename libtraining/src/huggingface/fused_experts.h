#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ckpt/extents.h>

#include "huggingface/name_table.h"

namespace optim {

// A running model of transformers 5 has the experts of a layer in one tensor, which its
// save_pretrained() takes apart:
//
//   P.experts.gate_up_proj  experts x 2 ffn x hidden    P.experts.E.{gate_proj,up_proj}.weight
//   P.experts.down_proj     experts x hidden x ffn      P.experts.E.down_proj.weight
//
// Source: "qwen2_moe" in transformers/conversion_mapping.py, 5.24.
struct ExpertWeight {
  std::string key;
  uint64_t first = 0;  // of the elements of the one tensor, in row-major order
  ckpt::Extents shape;
};
// Empty: it is none of these.
std::vector<ExpertWeight> weights_of_experts(const std::string& key, const ckpt::Extents& shape);

// Whether the table's folders have them apart, under these names.
bool has_experts_apart(const NameTable& table);

}  // namespace optim

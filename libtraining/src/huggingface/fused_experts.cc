#include "huggingface/fused_experts.h"

#include <algorithm>
#include <string_view>

#include <ckpt/box.h>

namespace optim {

std::vector<ExpertWeight> weights_of_experts(const std::string& key, const ckpt::Extents& shape) {
  constexpr std::string_view kGateUp = ".experts.gate_up_proj", kDown = ".experts.down_proj";
  const bool is_gate_up = key.ends_with(kGateUp), is_down = key.ends_with(kDown);
  if (shape.size() != 3 || (!is_gate_up && !is_down) || (is_gate_up && shape[1] % 2 != 0))
    return {};
  const std::string front = key.substr(0, key.rfind('.') + 1);
  const std::vector<std::string_view> names =
      is_down ? std::vector<std::string_view>{"down_proj"}
              : std::vector<std::string_view>{"gate_proj", "up_proj"};
  const ckpt::Extents shape_of_one = {shape[1] / names.size(), shape[2]};
  std::vector<ExpertWeight> weights;
  for (uint64_t expert = 0; expert < shape[0]; ++expert) {
    for (const std::string_view name : names) {
      weights.push_back({front + std::to_string(expert) + "." + std::string(name) + ".weight",
                         weights.size() * ckpt::element_count(shape_of_one), shape_of_one});
    }
  }
  return weights;
}

bool has_experts_apart(const NameTable& table) {
  return std::ranges::any_of(table.tensors, [](const TensorRow& row) {
    return row.target.ends_with(".experts.{expert}.gate_proj.weight");
  });
}

}  // namespace optim

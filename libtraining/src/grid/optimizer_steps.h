#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include <ckpt/dtype.h>
#include <ckpt/value.h>
#include <training/training_state.h>

namespace optim {

// Moves the step that all parameters of an optimizer share into its groups, as a
// DistributedOptimizer files it. `tree`: of the groups. Throws Unsupported for a tensor of
// another type than float32, float64, int32 and int64.
void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer);

template <typename Number>
std::optional<double> number_of_bytes(const std::string& bytes) {
  Number number;
  if (bytes.size() != sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  return static_cast<double>(number);
}

// One element of a tensor of the types in which optimizers count steps.
inline std::optional<double> step_number(ckpt::DType dtype, const std::string& bytes) {
  switch (dtype) {
    case ckpt::DType::Float32: return number_of_bytes<float>(bytes);
    case ckpt::DType::Float64: return number_of_bytes<double>(bytes);
    case ckpt::DType::Int32: return number_of_bytes<int32_t>(bytes);
    case ckpt::DType::Int64: return number_of_bytes<int64_t>(bytes);
    default: return std::nullopt;
  }
}

}  // namespace optim

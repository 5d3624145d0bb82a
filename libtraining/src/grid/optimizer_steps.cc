// Where optimizers count their steps.
#include "grid/optimizer_steps.h"

#include <cstdint>
#include <cstring>
#include <string>

#include <ckpt/error.h>

namespace optim {

namespace {

template <class Number>
std::optional<Number> number_of_bytes(const std::string& bytes) {
  Number number;
  if (bytes.size() != sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// What item() of the tensor gives.
ckpt::NodeId add_step(ckpt::ValueTree& tree, const ChainedOptimizerState& optimizer) {
  if (optimizer.step_layout == StepLayout::PerParamNumber) {
    return tree.integer(optimizer.step_number);
  }
  const std::string& bytes = optimizer.step_bytes;
  switch (optimizer.step_dtype) {
    case ckpt::DType::Float32: return tree.real(number_of_bytes<float>(bytes).value_or(0));
    case ckpt::DType::Float64: return tree.real(number_of_bytes<double>(bytes).value_or(0));
    case ckpt::DType::Int32: return tree.integer(number_of_bytes<int32_t>(bytes).value_or(0));
    case ckpt::DType::Int64: return tree.integer(number_of_bytes<int64_t>(bytes).value_or(0));
    default:
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "step"},
                        "a step count of type " + std::string(ckpt::name(optimizer.step_dtype)));
  }
}

}  // namespace

void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer) {
  const bool is_per_param = optimizer.step_layout == StepLayout::PerParam ||
                            optimizer.step_layout == StepLayout::PerParamNumber;
  if (!is_per_param) return;
  for (const ckpt::NodeId group : optimizer.groups) {
    tree.put(group, "step", add_step(tree, optimizer));
  }
  optimizer.step_layout = StepLayout::PerGroup;
}

std::optional<double> step_number(ckpt::DType dtype, const std::string& bytes) {
  switch (dtype) {
    case ckpt::DType::Float32: return number_of_bytes<float>(bytes);
    case ckpt::DType::Float64: return number_of_bytes<double>(bytes);
    case ckpt::DType::Int32: return number_of_bytes<int32_t>(bytes);
    case ckpt::DType::Int64: return number_of_bytes<int64_t>(bytes);
    default: return std::nullopt;
  }
}

}  // namespace optim

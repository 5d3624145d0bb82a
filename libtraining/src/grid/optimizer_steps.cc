// Where optimizers count their steps.
#include "grid/optimizer_steps.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <ckpt/error.h>

namespace optim {

namespace {

template <class Number>
Number step_number_in(const std::string& bytes) {
  Number number = 0;
  std::memcpy(&number, bytes.data(), std::min(bytes.size(), sizeof number));
  return number;
}

// What item() of the tensor gives.
ckpt::NodeId add_step(ckpt::ValueTree& tree, const ChainedOptimizerState& optimizer) {
  if (optimizer.step_layout == StepLayout::PerParamNumber) {
    return tree.integer(optimizer.step_number);
  }
  const std::string& bytes = optimizer.step_bytes;
  switch (optimizer.step_dtype) {
    case ckpt::DType::Float32: return tree.real(static_cast<double>(step_number_in<float>(bytes)));
    case ckpt::DType::Float64: return tree.real(step_number_in<double>(bytes));
    case ckpt::DType::Int32: return tree.integer(step_number_in<int32_t>(bytes));
    case ckpt::DType::Int64: return tree.integer(step_number_in<int64_t>(bytes));
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

}  // namespace optim

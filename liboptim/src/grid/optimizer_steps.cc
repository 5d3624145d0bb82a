// Where optimizers count their steps.
#include "grid/optimizer_steps.h"

#include <cstring>

#include <ckpt/error.h>

namespace optim {

void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer) {
  if (optimizer.step_layout != StepLayout::PerParam) return;
  float step = 0;
  if (optimizer.step_dtype != ckpt::DType::Float32 || optimizer.step_bytes.size() != sizeof step) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "step"},
                      "a step count that is not float32");
  }
  std::memcpy(&step, optimizer.step_bytes.data(), sizeof step);
  for (const ckpt::NodeId group : optimizer.groups) {
    tree.put(group, "step", tree.real(static_cast<double>(step)));
  }
  optimizer.step_layout = StepLayout::PerGroup;
}

}  // namespace optim

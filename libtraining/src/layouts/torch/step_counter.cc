// How often an optimizer has stepped, as torch rank files say it of each parameter.
#include "layouts/torch/step_counter.h"

#include <algorithm>
#include <span>

#include <ckpt/error.h>

namespace optim {
namespace {

constexpr const char* kDiffers = "its step count differs from that of the parameters before";

bool counts_per_param(StepLayout layout) {
  return layout == StepLayout::PerParam || layout == StepLayout::PerParamNumber;
}

}  // namespace

// torch_dist has one count for all.
void StepCounter::add(const OpenedTraining& source, const ckpt::TensorEntry& tensor,
                      const Place& place, const Counted& counted) {
  if (!tensor.shape.empty()) place.corrupt("a step count is not a single number");
  params_.insert(counted.param);
  std::string bytes(ckpt::count_bytes(tensor), '\0');
  source.read(tensor, ckpt::whole(tensor.shape), std::as_writable_bytes(std::span(bytes)));
  auto& owner = counted.view.chain[counted.view.params[counted.param].optimizer];
  if (owner.step_layout == StepLayout::None) {
    owner.step_layout = StepLayout::PerParam;
    owner.step_dtype = tensor.dtype;
    owner.step_bytes = bytes;
  } else if (owner.step_layout != StepLayout::PerParam || owner.step_bytes != bytes ||
             owner.step_dtype != tensor.dtype) {
    place.unsupported(kDiffers);
  }
}

void StepCounter::add(int64_t step, const Place& place, const Counted& counted) {
  params_.insert(counted.param);
  auto& owner = counted.view.chain[counted.view.params[counted.param].optimizer];
  if (owner.step_layout == StepLayout::None) {
    owner.step_layout = StepLayout::PerParamNumber;
    owner.step_number = step;
  } else if (owner.step_layout != StepLayout::PerParamNumber || owner.step_number != step) {
    place.unsupported(kDiffers);
  }
}

void StepCounter::finish(CommonBuilder& common, TrainingState& view) const {
  for (uint32_t i = 0; i < view.params.size(); ++i) {
    const TrainedParam& param = view.params[i];
    const bool counts = counts_per_param(view.chain[param.optimizer].step_layout);
    if (!counts || !param.info.requires_grad || params_.contains(i)) continue;
    throw ckpt::Error(ckpt::ErrorCode::Corrupt,
                      {.file = {}, .key = state_key("step", param.info.name)},
                      "is missing, although other parameters of its optimizer have a step count");
  }
  for (ChainedOptimizerState& optimizer : view.chain) {
    const bool in_group = std::ranges::any_of(optimizer.groups, [&](ckpt::NodeId group) {
      return common.tree().value(group).find("step").has_value();
    });
    if (in_group && counts_per_param(optimizer.step_layout)) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "step"},
                        "is in a group and in the states of parameters; expected in one of them");
    }
    if (in_group) optimizer.step_layout = StepLayout::PerGroup;
  }
}

}  // namespace optim

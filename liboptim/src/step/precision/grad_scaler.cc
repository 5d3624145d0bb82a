#include <optim/grad_scaler.h>

#include <ATen/ops/full.h>

#include <optim/checkpoint_bridge.h>
#include <algorithm>
#include <cmath>
#include <string>

#include "rules/refuse_key.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

void require(bool right, const char* field, const char* problem) {
  if (right) return;
  refuse_key(field, problem);
}

}  // namespace

GradScaler::GradScaler(double scale) : scale_(static_cast<float>(scale)) {
  require(scale_ > 0 && std::isfinite(scale_), "scale", "is not a positive fp32 number");
}

GradScaler::~GradScaler() = default;

float GradScaler::inverse_scale() const {
  return static_cast<float>(1 / static_cast<double>(scale_));
}

ConstantGradScaler::ConstantGradScaler(double scale) : GradScaler(scale) {}

DynamicGradScaler::DynamicGradScaler(const DynamicScaling& scaling)
    : GradScaler(scaling.initial_scale),
      scaling_(scaling),
      hysteresis_tracker_(scaling.hysteresis) {
  require(scaling.min_scale > 0 && scaling.min_scale <= scaling.initial_scale, "min_scale",
          "is not between 0 and the initial scale");
  require(scaling.growth_factor > 1, "growth_factor", "is not greater than 1");
  require(scaling.backoff_factor > 0 && scaling.backoff_factor < 1, "backoff_factor",
          "is not between 0 and 1");
  require(scaling.growth_interval > 0, "growth_interval", "is not positive");
  require(scaling.hysteresis > 0, "hysteresis", "is not positive");
}

// Hysteresis comes back only when the scale grows: after the first shrinking every further overflow
// shrinks it again, as in the reference.
void DynamicGradScaler::update(bool found_inf) {
  if (found_inf) {
    growth_tracker_ = 0;
    --hysteresis_tracker_;
    if (hysteresis_tracker_ > 0) return;
    scale_ = std::max(scale_ * static_cast<float>(scaling_.backoff_factor),
                      static_cast<float>(scaling_.min_scale));
    return;
  }
  ++growth_tracker_;
  if (growth_tracker_ < scaling_.growth_interval) return;
  growth_tracker_ = 0;
  hysteresis_tracker_ = scaling_.hysteresis;
  const float grown = scale_ * static_cast<float>(scaling_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

StateDict DynamicGradScaler::state_dict() const {
  StateDict dict;
  put(dict, "scale", handle_of(at::full({1}, scale_, at::kFloat)));
  put(dict, "growth_tracker", growth_tracker_);
  put(dict, "hysteresis_tracker", hysteresis_tracker_);
  return dict;
}

void DynamicGradScaler::load_state_dict(const StateDict& state_dict) {
  const std::string path = "grad_scaler";
  const StateValue& saved = at(state_dict, "scale", path);
  const bool is_tensor = saved.get_if<TensorHandle>() != nullptr;
  if (is_tensor && tensor(saved, path).numel() != 1)
    refuse_key(path, "'scale' is not a single number");
  const double scale = is_tensor ? tensor(saved, path).item<double>() : number(saved, path);
  require(scale > 0 && std::isfinite(scale), "grad_scaler", "'scale' is not positive");
  const double growth = number(at(state_dict, "growth_tracker", path), path);
  const double hysteresis = number(at(state_dict, "hysteresis_tracker", path), path);
  scale_ = static_cast<float>(scale);
  growth_tracker_ = static_cast<int64_t>(growth);
  hysteresis_tracker_ = static_cast<int64_t>(hysteresis);
}

std::unique_ptr<GradScaler> make_grad_scaler(const OptimizerConfig& config) {
  if (config.loss_scale) return std::make_unique<ConstantGradScaler>(*config.loss_scale);
  if (!config.fp16) return nullptr;
  DynamicScaling scaling;
  scaling.initial_scale = config.initial_loss_scale;
  scaling.min_scale = config.min_loss_scale;
  scaling.growth_interval = static_cast<int64_t>(config.loss_scale_window);
  scaling.hysteresis = config.hysteresis;
  return std::make_unique<DynamicGradScaler>(scaling);
}

}  // namespace optim

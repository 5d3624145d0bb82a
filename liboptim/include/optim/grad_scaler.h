#pragma once

#include <cstdint>
#include <memory>

#include <optim/export.h>
#include <optim/optimizer_config.h>
#include <optim/state_dict.h>

namespace optim {

// What a loss is multiplied with so that fp16 gradients do not vanish. Megatron-Core's
// ConstantGradScaler and DynamicGradScaler.
class OPTIM_EXPORT GradScaler {
 public:
  virtual ~GradScaler();
  double scale() const { return scale_; }
  float inverse_scale() const;  // fp32(1 / scale)
  // After each step: whether a gradient of any rank was infinite or NaN.
  virtual void update(bool found_inf) = 0;
  virtual StateDict state_dict() const = 0;
  virtual void load_state_dict(const StateDict& state_dict) = 0;

 protected:
  explicit GradScaler(double scale);
  float scale_ = 1;
};

class OPTIM_EXPORT ConstantGradScaler final : public GradScaler {
 public:
  explicit ConstantGradScaler(double scale);  // positive, else Error(InvalidArgument)
  void update(bool) override {}
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict&) override {}
};

struct DynamicScaling {
  double initial_scale = 4294967296;  // 2^32
  double min_scale = 1;
  double growth_factor = 2;        // above 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 1000;  // steps without overflow before it grows
  int64_t hysteresis = 2;          // overflows, since it grew last, before it shrinks
};

class OPTIM_EXPORT DynamicGradScaler final : public GradScaler {
 public:
  explicit DynamicGradScaler(const DynamicScaling& scaling);  // Error(InvalidArgument) as above
  void update(bool found_inf) override;
  // {scale: fp32 tensor of one element, growth_tracker, hysteresis_tracker}
  StateDict state_dict() const override;
  // Throws Error(InvalidArgument) for a state without these or with a scale that is not positive.
  void load_state_dict(const StateDict& state_dict) override;

  int64_t growth_tracker() const { return growth_tracker_; }
  int64_t hysteresis_tracker() const { return hysteresis_tracker_; }

 private:
  DynamicScaling scaling_;
  int64_t growth_tracker_ = 0;
  int64_t hysteresis_tracker_ = 0;
};

// loss_scale: constant; else fp16: dynamic; else null: no scaling, no overflow check.
OPTIM_EXPORT std::unique_ptr<GradScaler> make_grad_scaler(const OptimizerConfig& config);

}  // namespace optim

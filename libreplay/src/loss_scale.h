#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <optim/grad_scaler.h>

#include "restored_optimizer.h"

namespace optim {

// The loss scale of a run whose gradients were dumped before they were divided by it. It goes on
// from where the checkpoint has it.
class LossScale {
 public:
  LossScale() = default;  // 1 for good
  // As args and the checkpoint's grad_scaler say; where these name none it is 1 for good. Throws
  // Corrupt where a dynamic scale's state is not in the checkpoint, or makes no sense.
  explicit LossScale(const ReplaySource& source);

  bool is_used() const { return scaler_ != nullptr; }
  double scale() const { return is_used() ? scaler_->scale() : 1; }
  float inverse() const { return is_used() ? scaler_->inverse_scale() : 1; }
  void update(bool found_inf) {
    if (is_used()) scaler_->update(found_inf);
  }

 private:
  std::unique_ptr<GradScaler> scaler_;
};

// fp32(grad * inverse_scale), as an optimizer divides by its scale; the gradient itself for 1.
at::Tensor unscaled(const at::Tensor& grad, float inverse_scale);

}  // namespace optim

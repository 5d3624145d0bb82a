#pragma once

#include <cmath>
#include <cstdint>

#include <kernels/host_device.h>
#include <kernels/rules.h>

namespace kernels {

// One step's facts that the host does not wait for, in device memory.
struct StepControl {
  // Written by the host, between steps or replays.
  float inverse_loss_scale = 1;  // gradients are multiplied by it before anything else
  float max_norm = 0;            // 0: no clipping
  uint32_t check_finite = 0;     // 1 under loss scaling: a step that is not finite is skipped
  // Written by finish_step_control().
  uint32_t is_finite = 1;  // 0: a gradient is infinite or NaN
  uint32_t skip = 0;       // 1: nothing may change
  uint32_t failed = 0;     // 1: a process could not take part; skip is 1, too
  float clip = 1;          // what gradients are multiplied by: max_norm / (norm + 1e-6), at most 1
  double grad_norm = 0;    // of unscaled gradients, before clipping
  int64_t zero_count = 0;  // elements equal to zero
};

// As the host's GradScaler inverts it: in double, rounded once.
CKPT_HOST_DEVICE float inverse_of_loss_scale(float scale) {
  return static_cast<float>(1 / static_cast<double>(scale));
}

// What one tensor contributes. As doubles, so that one sum over processes carries all of them;
// counts are exact up to 2^53. A process that cannot take part in a step gives NaN for a count of
// zeros, which makes the sum NaN on all of them.
struct TensorStats {
  double square_sum;
  double zero_count;
};

constexpr double kClipEpsilon = 1e-6;  // Megatron's clip_grads.py

// The control of a step from the sums over all tensors of all processes.
CKPT_HOST_DEVICE void set_control(StepControl& control, const TensorStats& total) {
  control.grad_norm = sqrt(total.square_sum);
  control.failed = total.zero_count >= 0 ? 0 : 1;
  control.zero_count = control.failed != 0 ? 0 : static_cast<int64_t>(total.zero_count);
  // fp32 squares cannot overflow in fp64: the sum is finite exactly if every gradient is.
  control.is_finite = total.square_sum - total.square_sum == 0 ? 1 : 0;
  const bool has_overflow = control.check_finite != 0 && control.is_finite == 0;
  control.skip = has_overflow || control.failed != 0 ? 1 : 0;
  const double clip = control.max_norm / (control.grad_norm + kClipEpsilon);
  control.clip = control.max_norm > 0 && clip < 1 ? static_cast<float>(clip) : 1.0F;
}

}  // namespace kernels

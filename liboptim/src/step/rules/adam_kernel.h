#pragma once

#include <cstdint>

#include "step/rules/square_roots.h"

namespace optim {

// Part of one parameter, fp32.
struct AdamSpan {
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  uint16_t* rounded = nullptr;  // bf16 bits of the new parameter; null: not wanted
  int64_t count = 0;
};
AdamSpan part_of(const AdamSpan& span, int64_t begin, int64_t count);

// The scalars of one update, rounded to fp32 as torch.optim's operations round them.
struct AdamScalars {
  float grad_scale = 1;
  float l2 = 0;       // added to the gradient, times the parameter; 0: none
  float decay = 1;    // of the parameter before it moves; 1: none
  float weight1 = 0;  // 1 - beta1
  float beta2 = 0, weight2 = 0;
  float root_correction2 = 1;  // sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // -lr / (1 - beta1^step)
};

// AdamArithmetic::Torch: moments, square roots and parameters, in blocks as `roots` takes them.
// `scratch` holds as many elements as the span, made a multiple of 16, none of them undefined.
void adam_update(const AdamSpan& span, const AdamScalars& scalars, const SquareRoots& roots,
                 float* scratch);

// AdamArithmetic::TorchFused: torch's fused kernel takes eight elements at a time, and what is left
// at a tensor's end one by one, with another rounding of exp_avg_sq.
inline constexpr int64_t kTorchFusedVector = 8;
void torch_fused_adam_update(const AdamSpan& span, const AdamScalars& scalars);
void torch_fused_adam_tail(const AdamSpan& span, const AdamScalars& scalars);

// The same of AdamArithmetic::FusedAdam.
struct FusedAdamScalars {
  float grad_scale = 1;
  float l2 = 0;           // added to the gradient, times the parameter; 0: none
  float added_decay = 0;  // added to the update, times the parameter
  float beta1 = 0, weight1 = 0, inverse1 = 1;  // weight: 1 - beta; inverse: of 1 - beta^step
  float beta2 = 0, weight2 = 0, inverse2 = 1;
  float eps = 0;
  float minus_lr = 0;
};
void fused_adam_update(const AdamSpan& span, const FusedAdamScalars& scalars);

}  // namespace optim

#pragma once

#include <cstdint>

namespace optim {

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

// Part of one parameter, fp32. `scratch` holds as many elements.
struct AdamSpan {
  float* param = nullptr;
  const float* grad = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  float* scratch = nullptr;
  uint16_t* rounded = nullptr;  // bf16 bits of the new parameter; null: not wanted
  int64_t count = 0;
  AdamScalars scalars;
};

// Before the square root: moments, and the second moment once more into `scratch`.
void adam_moments(const AdamSpan& span);
// After it: `scratch` holds the roots, the parameter moves.
void adam_apply(const AdamSpan& span);
// adam_apply(span) and adam_moments(next) in one loop: memory works while the processor divides.
// The spans share no element.
void adam_apply_and_moments(const AdamSpan& span, const AdamSpan& next);

}  // namespace optim

#pragma once

#include <cstdint>

#include "step/rules/square_roots.h"

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

// Part of one parameter, fp32. `scratch` holds as many elements, made a multiple of 16, none of
// them undefined.
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

// Moments, square roots and parameters, in blocks as `roots` takes them.
void adam_update(const AdamSpan& span, const SquareRoots& roots);

}  // namespace optim

// Adam's loops over part of a parameter, in each arithmetic.
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

// How square roots are taken, and room for as many elements as a span has, made a multiple of 16,
// none of them undefined.
struct AdamRoots {
  const SquareRoots& roots;
  float* scratch;
};

// AdamArithmetic::Torch: moments, square roots and parameters, in blocks as `roots` takes them.
void adam_update(const AdamSpan& span, const AdamScalars& scalars, const AdamRoots& roots);

// AdamArithmetic::Fused: torch's kernel takes eight elements at a time, and what is left at a
// tensor's end one by one, where exp_avg_sq is rounded elsewhere. Roots are the processor's.
inline constexpr int64_t kTorchFusedVector = 8;
void torch_fused_update(const AdamSpan& span, const AdamScalars& scalars);
void torch_fused_tail(const AdamSpan& span, const AdamScalars& scalars);

// The scalars of FusedAdam's sequence.
struct FusedAdamScalars {
  float grad_scale = 1;
  float l2 = 0;           // added to the gradient, times the parameter; 0: none
  float added_decay = 0;  // added to the update, times the parameter
  float beta1 = 0, weight1 = 0, correction1 = 1;  // weight: 1 - beta; correction: 1 - beta^step
  float beta2 = 0, weight2 = 0, correction2 = 1;
  float eps = 0;
  float minus_lr = 0;
};

// AdamArithmetic::FusedAdam, with ATen's square roots, and TransformerEngine, with the processor's.
void fused_adam_update(const AdamSpan& span, const FusedAdamScalars& s, const AdamRoots& roots);
void transformer_engine_update(const AdamSpan& span, const FusedAdamScalars& s);

// Adam's loops for processors with AVX2 and FMA, and without AVX-512: whether this processor runs
// them, and `roots` are a sequence that they have.
bool has_avx2_loop(const SquareRoots& roots);

// Update elements from the first on, four vectors of eight at a time, and say how many: fewer than
// 32 are left, or they stopped behind elements whose square roots are LibTorch's alone.
int64_t adam_update_avx2(const AdamSpan& span, const AdamScalars& s, const SquareRoots& roots);
int64_t fused_adam_update_avx2(const AdamSpan& span, const FusedAdamScalars& s,
                               const SquareRoots& roots);

}  // namespace optim

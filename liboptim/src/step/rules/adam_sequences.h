// Adam's arithmetics, rounding for rounding, for one number or for several lanes: each multiply_add
// is one rounding, as in torch.optim's operations, its fused kernel and FusedAdam; every other
// operation rounds (tests/optim/step/adam_test.cc).
#pragma once

#include "step/rules/adam_kernel.h"

namespace optim {

[[gnu::always_inline]] inline float multiply_add(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

// ATen's lerp goes from the nearer end.
template <class N>
struct Lerp {
  N weight;
  bool from_end;
  [[gnu::always_inline]] explicit Lerp(float w)
      : weight(w < 0.5F ? w : w - 1), from_end(!(w < 0.5F)) {}
  [[gnu::always_inline]] N operator()(N start, N end) const {
    return multiply_add(weight, end - start, from_end ? end : start);
  }
};

// Torch and Fused: they differ in the square root alone.
template <class N>
struct TorchSequence {
  N grad_scale, l2, decay, weight2, beta2, root_correction2, eps, step_size;
  Lerp<N> lerp;

  [[gnu::always_inline]] explicit TorchSequence(const AdamScalars& s)
      : grad_scale(s.grad_scale),
        l2(s.l2),
        decay(s.decay),
        weight2(s.weight2),
        beta2(s.beta2),
        root_correction2(s.root_correction2),
        eps(s.eps),
        step_size(s.step_size),
        lerp(s.weight1) {}
  template <bool kL2>
  [[gnu::always_inline]] N effective_grad(N grad, N param) const {
    const N g = grad * grad_scale;
    return kL2 ? multiply_add(l2, param, g) : g;
  }
  [[gnu::always_inline]] N exp_avg(N m, N g) const { return lerp(m, g); }
  [[gnu::always_inline]] N exp_avg_sq(N v, N g) const {
    return multiply_add(weight2 * g, g, v * beta2);
  }
  // In the last elements of a tensor, of Fused.
  [[gnu::always_inline]] N exp_avg_sq_of_tail(N v, N g) const {
    return multiply_add(v, beta2, weight2 * g * g);
  }
  [[gnu::always_inline]] N under_root(N v) const { return v; }
  [[gnu::always_inline]] N denominator(N root) const { return root / root_correction2 + eps; }
  [[gnu::always_inline]] N update(N m, N denominator) const { return step_size * m / denominator; }
  [[gnu::always_inline]] N param(N p, N update) const { return p * decay + update; }
};

// FusedAdam and TransformerEngine: they differ in the square root and in how scalars are made.
template <class N>
struct FusedAdamSequence {
  N grad_scale, l2, added_decay, weight1, beta1, correction1, weight2, beta2, correction2, eps,
      minus_lr;

  [[gnu::always_inline]] explicit FusedAdamSequence(const FusedAdamScalars& s)
      : grad_scale(s.grad_scale),
        l2(s.l2),
        added_decay(s.added_decay),
        weight1(s.weight1),
        beta1(s.beta1),
        correction1(s.correction1),
        weight2(s.weight2),
        beta2(s.beta2),
        correction2(s.correction2),
        eps(s.eps),
        minus_lr(s.minus_lr) {}
  template <bool kL2>
  [[gnu::always_inline]] N effective_grad(N grad, N param) const {
    const N g = grad * grad_scale;
    return kL2 ? multiply_add(l2, param, g) : g;
  }
  [[gnu::always_inline]] N exp_avg(N m, N g) const { return multiply_add(weight1, g, m * beta1); }
  [[gnu::always_inline]] N exp_avg_sq(N v, N g) const {
    return multiply_add(weight2 * g, g, v * beta2);
  }
  [[gnu::always_inline]] N under_root(N v) const { return v / correction2; }
  [[gnu::always_inline]] N denominator(N root) const { return root + eps; }
  [[gnu::always_inline]] N update(N m, N denominator) const {
    return m / correction1 / denominator;
  }
  [[gnu::always_inline]] N param(N p, N update) const {
    return multiply_add(minus_lr, multiply_add(added_decay, p, update), p);
  }
};

}  // namespace optim

#pragma once

#include <cmath>
#include <cstdint>

#include <kernels/host_device.h>

namespace kernels {

// The update rules' formulas, written once for the GPU and its CPU twin. Operations, their order
// and their fused multiply-adds are those of LibTorch's vectorised CPU operators, so that results
// differ from the CPU rules' only where LibTorch's square root is not correctly rounded. Compile
// without further contraction (nvcc --fmad=false, g++ -ffp-contract=off).

enum class RuleKind : uint8_t {
  Adam,       // torch.optim.Adam and AdamW
  FusedAdam,  // TransformerEngine's and Apex's FusedAdam; they have float betas
  Sgd,
  Lion,
  Muon,  // its momentum and its last step; between them lies Newton-Schulz
};

// p: parameter, g: gradient, lr: learning rate, wd: weight decay.
enum class Decay : uint8_t {
  Decoupled,    // p -= lr wd p
  Independent,  // p -= wd p
  L2,           // g += wd p, without changing the gradient's buffer
  Palm,         // p -= lr^2 wd p
};

// A parameter group's settings, in device memory. The host may write lr, weight_decay and
// inverse_loss_scale between steps or replays of a graph; `step` counts on the device, where it
// is known whether a step was skipped.
struct GroupSettings {
  double lr;
  double weight_decay;
  double beta1, beta2;  // SGD and Muon: beta1 is the momentum
  double eps;
  int64_t step;  // updates done
  RuleKind rule;
  Decay decay;           // Adam, FusedAdam: Decoupled or L2; SGD: L2
  bool bias_correction;  // FusedAdam only
  bool nesterov;         // Muon only
  uint32_t rates_index;  // where a step reads rates on the device: which of them (DeviceSources)
};

// What the elements of a group need in one step: computed in double, rounded once.
struct RuleScalars {
  float minus_lr;        // Adam: -lr / (1 - beta1^step)
  float keep;            // Adam: p is multiplied by 1 - lr wd; else 1
  float shrink;          // p += shrink p; 0: nothing
  float l2;              // g += l2 p; 0: nothing
  float added_decay;     // FusedAdam: the update grows by added_decay p
  float beta1, weight1;  // weight = 1 - beta
  float beta2, weight2;
  float correction1, correction2;  // Adam: correction2 is sqrt(1 - beta2^step)
  float eps;
};

// base^exponent by repeated squaring: the same double on every processor.
CKPT_HOST_DEVICE double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

CKPT_HOST_DEVICE double shrink_of(const GroupSettings& settings) {
  const double wd = settings.weight_decay;
  switch (settings.decay) {
    case Decay::Decoupled: return -wd * settings.lr;
    case Decay::Independent: return -wd;
    case Decay::Palm: return -wd * settings.lr * settings.lr;
    default: return 0;
  }
}

// The scalars of update number `settings.step`, which counts from 1.
CKPT_HOST_DEVICE RuleScalars make_scalars(const GroupSettings& settings) {
  const double lr = settings.lr;
  const double wd = settings.weight_decay;
  const bool corrects = settings.rule == RuleKind::Adam || settings.bias_correction;
  const double correction1 = corrects ? 1 - power(settings.beta1, settings.step) : 1;
  const double correction2 = corrects ? 1 - power(settings.beta2, settings.step) : 1;
  RuleScalars s = {};
  s.minus_lr = static_cast<float>(-lr);
  s.keep = 1;
  s.beta1 = static_cast<float>(settings.beta1);
  s.weight1 = static_cast<float>(1 - settings.beta1);
  s.beta2 = static_cast<float>(settings.beta2);
  s.weight2 = static_cast<float>(1 - settings.beta2);
  s.correction1 = static_cast<float>(correction1);
  s.correction2 = static_cast<float>(correction2);
  s.eps = static_cast<float>(settings.eps);
  if (settings.decay == Decay::L2) {
    s.l2 = static_cast<float>(wd);
  } else if (settings.rule == RuleKind::Adam) {
    s.keep = static_cast<float>(1 - lr * wd);
  } else if (settings.rule == RuleKind::FusedAdam) {
    s.added_decay = static_cast<float>(wd);
  } else {
    s.shrink = static_cast<float>(shrink_of(settings));
  }
  if (settings.rule == RuleKind::Adam) {
    s.minus_lr = static_cast<float>(-(lr / correction1));
    s.correction2 = static_cast<float>(sqrt(correction2));
  }
  return s;
}

// a + weight (b - a), as at::lerp rounds it.
CKPT_HOST_DEVICE float lerp_of(float a, float b, float weight) {
  const bool is_near_a = fabsf(weight) < 0.5F;  // no branch: the weight is a group's
  return fmaf(is_near_a ? weight : weight - 1, b - a, is_near_a ? a : b);
}

// A parameter, its gradient and its states, in fp32.
struct Element {
  float param, grad, state[2];
};

// The gradient with L2 decay, if any.
CKPT_HOST_DEVICE float decayed_grad(const RuleScalars& s, const Element& e) {
  return s.l2 != 0 ? fmaf(s.l2, e.param, e.grad) : e.grad;
}

// The parameter after decay that is no part of the gradient.
CKPT_HOST_DEVICE float decayed_param(const RuleScalars& s, float param) {
  return s.shrink != 0 ? fmaf(s.shrink, param, param) : param;
}

//   p = p (1 - lr wd)                       L2: g = g + wd p
//   m = lerp(m, g, 1 - b1)
//   v = v b2 + (1 - b2) g g
//   p = p + (-lr / c1) m / (sqrt(v) / sqrt(c2) + eps)
struct AdamFormula {
  static constexpr int kStates = 2;
  CKPT_HOST_DEVICE static void update(const RuleScalars& s, Element& e) {
    const float grad = decayed_grad(s, e);
    float& m = e.state[0];
    float& v = e.state[1];
    m = lerp_of(m, grad, s.weight1);
    v = fmaf(s.weight2 * grad, grad, v * s.beta2);
    const float denominator = sqrtf(v) / s.correction2 + s.eps;
    e.param = e.param * s.keep + s.minus_lr * m / denominator;
  }
};

//   m = m b1 + (1 - b1) g;  v = v b2 + (1 - b2) g g
//   u = (m / c1) / (sqrt(v / c2) + eps) + wd p
//   p = p - lr u
struct FusedAdamFormula {
  static constexpr int kStates = 2;
  CKPT_HOST_DEVICE static void update(const RuleScalars& s, Element& e) {
    const float grad = decayed_grad(s, e);
    float& m = e.state[0];
    float& v = e.state[1];
    m = fmaf(s.weight1, grad, m * s.beta1);
    v = fmaf(s.weight2 * grad, grad, v * s.beta2);
    const float update = m / s.correction1 / (sqrtf(v / s.correction2) + s.eps);
    e.param = fmaf(s.minus_lr, fmaf(s.added_decay, e.param, update), e.param);
  }
};

//   b = momentum b + g;  p = p - lr b         b starts at 0; without momentum b is g
struct SgdFormula {
  static constexpr int kStates = 1;
  CKPT_HOST_DEVICE static void update(const RuleScalars& s, Element& e) {
    const float grad = decayed_grad(s, e);
    const float param = decayed_param(s, e.param);
    e.state[0] = s.beta1 * e.state[0] + grad;
    e.param = fmaf(s.minus_lr, e.state[0], param);
  }
};

CKPT_HOST_DEVICE float sign_of(float value) {
  return value > 0 ? 1.0F : value < 0 ? -1.0F : value;  // of zero: zero; of NaN: NaN
}

//   u = sign(lerp(m, g, 1 - b1));  m = lerp(m, g, 1 - b2);  p = p - lr u
struct LionFormula {
  static constexpr int kStates = 1;
  CKPT_HOST_DEVICE static void update(const RuleScalars& s, Element& e) {
    const float grad = decayed_grad(s, e);
    const float param = decayed_param(s, e.param);
    float& m = e.state[0];
    const float direction = sign_of(lerp_of(m, grad, s.weight1));
    m = lerp_of(m, grad, s.weight2);
    e.param = fmaf(s.minus_lr, direction, param);
  }
};

// Muon's momentum M = lerp(M, g, 1 - momentum).
CKPT_HOST_DEVICE float muon_momentum(const RuleScalars& s, float momentum, float grad) {
  return lerp_of(momentum, grad, s.weight1);
}

// What Newton-Schulz orthogonalises: lerp(g, M, momentum) with Nesterov, else M.
CKPT_HOST_DEVICE float muon_direction(const RuleScalars& s, float momentum, float grad) {
  return lerp_of(grad, momentum, s.beta1);
}

// p = p - lr O scale extra, after decay; O: the orthogonalised matrix's element.
CKPT_HOST_DEVICE float muon_apply(const RuleScalars& s, float param, float scaled_update) {
  return fmaf(s.minus_lr, scaled_update, decayed_param(s, param));
}

}  // namespace kernels

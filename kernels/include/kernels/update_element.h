#pragma once

#include <kernels/element.h>
#include <kernels/rules.h>
#include <kernels/tensor_table.h>

namespace kernels {

// One element as it is stored: the low bits of each word.
struct StoredElement {
  uint32_t grad, main, remainder, state[2], model;
};

// What all elements of one tensor share in a step.
struct TensorFactors {
  float inverse_loss_scale;
  float clip;        // 1 where the norm is within its bound
  float scale[3];    // of main, state[0], state[1] as read; 1 where the type is not scaled
  float inverse[3];  // one over the scale as written
};

// The scale that brings `absmax` to the largest stored magnitude, and its inverse for writing. A
// scale of which fp32 has no inverse is zero, and so are all elements: 0 * inf would be NaN.
CKPT_HOST_DEVICE float scale_for(ElementType type, float absmax) {
  const float scale = absmax / stored_max(type);
  return scale <= 0x1p-128F ? 0 : scale;  // NaN stays
}
// Of zero: zero; NaN stays.
CKPT_HOST_DEVICE float inverse_of(float scale) { return scale > 0 ? 1 / scale : scale; }

// From what is stored to what the formula computes with ...
template <class Types>
CKPT_HOST_DEVICE void apply_factors(const Types& types, const TensorFactors& factors, Element& e) {
  e.grad = e.grad * factors.inverse_loss_scale * factors.clip;
  if (types.has_factor(types.main())) e.param *= factors.scale[0];
  for (int i = 0; i < 2; ++i) {
    if (types.has_factor(types.state(i))) e.state[i] *= factors.scale[1 + i];
  }
}

// ... and back. The model's copy is made before, of the parameter as it is.
template <class Types>
CKPT_HOST_DEVICE void remove_factors(const Types& types, const TensorFactors& factors, Element& e) {
  if (types.has_factor(types.main())) e.param *= factors.inverse[0];
  for (int i = 0; i < 2; ++i) {
    if (types.has_factor(types.state(i))) e.state[i] *= factors.inverse[1 + i];
  }
}

// The step of one element, of values as they are stored. The GPU and the twin both call this.
template <class Formula, class Types>
CKPT_HOST_DEVICE void update_values(const Types& types, const TensorFactors& factors,
                                    const RuleScalars& scalars, Element& e) {
  apply_factors(types, factors, e);
  Formula::update(scalars, e);
}

template <class Types>
CKPT_HOST_DEVICE Element decode_element(const Types& types, const StoredElement& stored) {
  Element e = {};
  e.grad = decode(types.grad(), stored.grad);
  e.param = types.main() == ElementType::SplitF32 ? join({stored.main, stored.remainder})
                                                  : decode(types.main(), stored.main);
  for (int i = 0; i < 2; ++i) e.state[i] = decode(types.state(i), stored.state[i]);
  return e;
}

template <class Types>
CKPT_HOST_DEVICE void encode_element(const Types& types, const Element& e, StoredElement& stored) {
  if (types.main() == ElementType::SplitF32) {
    const SplitFloat parts = split(e.param);
    stored.main = parts.upper;
    stored.remainder = parts.lower;
  } else {
    stored.main = encode(types.main(), e.param);
  }
  for (int i = 0; i < 2; ++i) stored.state[i] = encode(types.state(i), e.state[i]);
}

// One element's step, from stored bits to stored bits: what the kernels do to vectors of them.
template <class Formula, class Types>
CKPT_HOST_DEVICE void update_element(const Types& types, const TensorFactors& factors,
                                     const RuleScalars& scalars, StoredElement& stored) {
  Element e = decode_element(types, stored);
  update_values<Formula>(types, factors, scalars, e);
  stored.model = encode(types.model(), e.param);
  remove_factors(types, factors, e);
  encode_element(types, e, stored);
}

// Types known when the program runs ...
struct AnyTypes {
  static constexpr int kVector = 4;      // elements a thread loads of each tensor at once
  static constexpr int kUnroll = 1;      // such vectors in flight per thread
  static constexpr int kGradVector = 4;  // the same where only gradients and states are read
  static constexpr int kGradUnroll = 1;
  static constexpr bool kMayBeScaled = true;
  TensorTypes types;
  CKPT_HOST_DEVICE ElementType grad() const { return types.grad; }
  CKPT_HOST_DEVICE ElementType main() const { return types.main; }
  CKPT_HOST_DEVICE ElementType state(int i) const { return types.state[i]; }
  CKPT_HOST_DEVICE ElementType model() const { return types.model; }
  // A factor of 1 costs less than to ask.
  CKPT_HOST_DEVICE static constexpr bool has_factor(ElementType) { return true; }
  static bool fits(const TensorTypes&) { return true; }
};

// ... and when it is compiled, for the modes that training runs use; the model's copy stays a
// choice at run time, since it is written only. The widest tensor is accessed 16 bytes at a time;
// a warp's access is contiguous in every tensor.
template <ElementType kGrad, ElementType kMain, ElementType kState0, ElementType kState1>
struct FixedTypes {
  static constexpr bool kHasWideState = bytes_of(kState0) == 4 || bytes_of(kState1) == 4;
  static constexpr int kGradVector = kHasWideState || bytes_of(kGrad) == 4 ? 4 : 8;
  static constexpr int kVector = kGradVector == 4 || bytes_of(kMain) == 4 ? 4 : 8;
  static constexpr int kUnroll = kVector == 4 ? 2 : 1;
  static constexpr int kGradUnroll = 2;
  static constexpr bool kMayBeScaled = is_scaled(kMain) || is_scaled(kState0) || is_scaled(kState1);
  TensorTypes types;
  CKPT_HOST_DEVICE static constexpr ElementType grad() { return kGrad; }
  CKPT_HOST_DEVICE static constexpr ElementType main() { return kMain; }
  CKPT_HOST_DEVICE static constexpr ElementType state(int i) { return i == 0 ? kState0 : kState1; }
  CKPT_HOST_DEVICE ElementType model() const { return types.model; }
  CKPT_HOST_DEVICE static constexpr bool has_factor(ElementType type) { return is_scaled(type); }
  static bool fits(const TensorTypes& t) {
    return t.grad == kGrad && t.main == kMain && t.state[0] == kState0 && t.state[1] == kState1;
  }
};

}  // namespace kernels

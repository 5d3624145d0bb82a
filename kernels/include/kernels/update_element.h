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

template <class Types>
CKPT_HOST_DEVICE Element decode_element(const Types& types, const TensorFactors& factors,
                                        const StoredElement& stored) {
  Element e = {};
  e.grad = decode(types.grad(), stored.grad) * factors.inverse_loss_scale * factors.clip;
  e.param = types.main() == ElementType::SplitF32 ? join({stored.main, stored.remainder})
                                                  : decode(types.main(), stored.main);
  if (is_scaled(types.main())) e.param *= factors.scale[0];
  for (int i = 0; i < 2; ++i) {
    e.state[i] = decode(types.state(i), stored.state[i]);
    if (is_scaled(types.state(i))) e.state[i] *= factors.scale[1 + i];
  }
  return e;
}

template <class Types>
CKPT_HOST_DEVICE void encode_element(const Types& types, const TensorFactors& factors,
                                     const Element& e, StoredElement& stored) {
  if (types.main() == ElementType::SplitF32) {
    const SplitFloat parts = split(e.param);
    stored.main = parts.upper;
    stored.remainder = parts.lower;
  } else if (is_scaled(types.main())) {
    stored.main = encode(types.main(), e.param * factors.inverse[0]);
  } else {
    stored.main = encode(types.main(), e.param);
  }
  for (int i = 0; i < 2; ++i) {
    const float value =
        is_scaled(types.state(i)) ? e.state[i] * factors.inverse[1 + i] : e.state[i];
    stored.state[i] = encode(types.state(i), value);
  }
  stored.model = encode(types.model(), e.param);
}

// One element's step, from stored bits to stored bits. The GPU and the twin both call this.
template <class Formula, class Types>
CKPT_HOST_DEVICE void update_element(const Types& types, const TensorFactors& factors,
                                     const RuleScalars& scalars, StoredElement& stored) {
  Element e = decode_element(types, factors, stored);
  Formula::update(scalars, e);
  encode_element(types, factors, e, stored);
}

// Types known when the program runs ...
struct AnyTypes {
  static constexpr int kVector = 4;  // elements a thread loads of each tensor at once
  static constexpr int kUnroll = 1;  // such vectors in flight per thread
  TensorTypes types;
  CKPT_HOST_DEVICE ElementType grad() const { return types.grad; }
  CKPT_HOST_DEVICE ElementType main() const { return types.main; }
  CKPT_HOST_DEVICE ElementType state(int i) const { return types.state[i]; }
  CKPT_HOST_DEVICE ElementType model() const { return types.model; }
};

// ... and when it is compiled, for the modes that training runs use; the model's copy stays a
// choice at run time, since it is written only. The widest tensor is accessed 16 bytes at a time;
// a warp's access is contiguous in every tensor.
template <ElementType kGrad, ElementType kMain, ElementType kState0, ElementType kState1>
struct FixedTypes {
  static constexpr int kBytes[] = {bytes_of(kGrad), bytes_of(kMain), bytes_of(kState0),
                                   bytes_of(kState1)};
  static constexpr bool kHasWide =
      kBytes[0] == 4 || kBytes[1] == 4 || kBytes[2] == 4 || kBytes[3] == 4;
  static constexpr int kVector = kHasWide ? 4 : 8;
  static constexpr int kUnroll = kHasWide ? 2 : 1;
  TensorTypes types;
  CKPT_HOST_DEVICE static constexpr ElementType grad() { return kGrad; }
  CKPT_HOST_DEVICE static constexpr ElementType main() { return kMain; }
  CKPT_HOST_DEVICE static constexpr ElementType state(int i) { return i == 0 ? kState0 : kState1; }
  CKPT_HOST_DEVICE ElementType model() const { return types.model; }
  static bool fits(const TensorTypes& t) {
    return t.grad == kGrad && t.main == kMain && t.state[0] == kState0 && t.state[1] == kState1;
  }
};

}  // namespace kernels

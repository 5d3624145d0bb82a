#pragma once

#include <kernels/multi_tensor_update.h>
#include <kernels/update_element.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kernels {

// The table's kernels on the CPU, one element after the other. Here all pointers lead to host
// memory. Compile without -ffast-math and with -ffp-contract=off.

inline uint32_t stored_bits(const void* array, int64_t i, ElementType type) {
  uint32_t bits = 0;
  const auto bytes = static_cast<size_t>(bytes_of(type));
  std::memcpy(&bits, static_cast<const char*>(array) + static_cast<size_t>(i) * bytes, bytes);
  return bits;
}

inline void store_bits(void* array, int64_t i, ElementType type, uint32_t bits) {
  const auto bytes = static_cast<size_t>(bytes_of(type));
  std::memcpy(static_cast<char*>(array) + static_cast<size_t>(i) * bytes, &bits, bytes);
}

inline StoredElement stored_element(const TensorTypes& types, const TensorSlot& slot, int64_t i) {
  StoredElement e = {};
  e.grad = stored_bits(slot.grad, i, types.grad);
  e.main = stored_bits(slot.main, i, types.main);
  if (types.main == ElementType::SplitF32) e.remainder = stored_bits(slot.remainder, i, types.main);
  for (int s = 0; s < 2; ++s) {
    if (types.state[s] != ElementType::None) {
      e.state[s] = stored_bits(slot.state[s], i, types.state[s]);
    }
  }
  return e;
}

inline void store_element(const TensorTypes& types, const TensorSlot& slot, int64_t i,
                          const StoredElement& e) {
  store_bits(slot.main, i, types.main, e.main);
  if (types.main == ElementType::SplitF32) store_bits(slot.remainder, i, types.main, e.remainder);
  for (int s = 0; s < 2; ++s) {
    if (types.state[s] != ElementType::None) {
      store_bits(slot.state[s], i, types.state[s], e.state[s]);
    }
  }
  if (types.model != ElementType::None && slot.model != nullptr) {
    store_bits(slot.model, i, types.model, e.model);
  }
}

inline ElementType scaled_type(const TensorTypes& types, int i) {
  return i == 0 ? types.main : types.state[i - 1];
}

// The largest new magnitudes of main and states: what the pass before the update of scaled tables
// finds.
template <class Formula>
void find_absmax(const TensorTypes& types, const TensorSlot& slot, const RuleScalars& scalars,
                 TensorFactors& factors) {
  uint32_t absmax[3] = {0, 0, 0};  // bits: those of NaN are the largest
  for (int64_t i = 0; i < slot.count; ++i) {
    Element e = decode_element(AnyTypes{types}, stored_element(types, slot, i));
    update_values<Formula>(AnyTypes{types}, factors, scalars, e);
    const float values[] = {e.param, e.state[0], e.state[1]};
    for (int k = 0; k < 3; ++k)
      absmax[k] = std::max(absmax[k], bits_of_float(std::fabs(values[k])));
  }
  for (int k = 0; k < 3; ++k) {
    if (!is_scaled(scaled_type(types, k))) continue;
    const float scale = scale_for(scaled_type(types, k), float_of_bits(absmax[k]));
    factors.inverse[k] = inverse_of(scale);
    slot.scale[k]->scale = scale;
  }
}

template <class Formula>
void update_twin(const TensorTypes& types, const TensorSlot& slot, const RuleScalars& scalars,
                 const StepControl& control) {
  if (control.skip != 0) return;
  TensorFactors factors = {control.inverse_loss_scale, control.clip, {1, 1, 1}, {1, 1, 1}};
  bool has_scaled = false;
  for (int k = 0; k < 3; ++k) {
    if (!is_scaled(scaled_type(types, k))) continue;
    factors.scale[k] = slot.scale[k]->scale;
    has_scaled = true;
  }
  if (has_scaled) find_absmax<Formula>(types, slot, scalars, factors);
  for (int64_t i = 0; i < slot.count; ++i) {
    StoredElement e = stored_element(types, slot, i);
    update_element<Formula>(AnyTypes{types}, factors, scalars, e);
    store_element(types, slot, i, e);
  }
}

// One tensor's step under any rule but Muon.
struct TwinRequest {
  TensorTypes types;
  RuleKind rule;
  RuleScalars scalars;
  StepControl control;
};

inline void update_twin(const TwinRequest& r, const TensorSlot& slot) {
  switch (r.rule) {
    case RuleKind::Adam: return update_twin<AdamFormula>(r.types, slot, r.scalars, r.control);
    case RuleKind::FusedAdam:
      return update_twin<FusedAdamFormula>(r.types, slot, r.scalars, r.control);
    case RuleKind::Sgd: return update_twin<SgdFormula>(r.types, slot, r.scalars, r.control);
    case RuleKind::Lion: return update_twin<LionFormula>(r.types, slot, r.scalars, r.control);
    case RuleKind::Muon: return;
  }
}

}  // namespace kernels

#pragma once

#include <cstdint>

#include <kernels/host_device.h>

namespace kernels {

// How a tensor's elements are stored.
enum class ElementType : uint8_t {
  None,  // the tensor does not exist
  F32,
  BF16,
  F16,       // as optimizer state or master: value = stored * scale of the tensor
  F8E4M3,    // OCP E4M3, likewise scaled
  SplitF32,  // fp32 whose upper half lies in a bf16 tensor, its lower half in an int16 tensor
};

CKPT_HOST_DEVICE constexpr int bytes_of(ElementType type) {
  switch (type) {
    case ElementType::F32: return 4;
    case ElementType::F8E4M3: return 1;
    case ElementType::None: return 0;
    default: return 2;  // SplitF32: of each half
  }
}

// Largest magnitude that a scaled tensor stores (TransformerEngine's choice: fp16 keeps a bit of
// room); 0 for types that are stored as they are.
CKPT_HOST_DEVICE constexpr float stored_max(ElementType type) {
  return type == ElementType::F16 ? 65504.0F / 2 : type == ElementType::F8E4M3 ? 448.0F : 0.0F;
}

CKPT_HOST_DEVICE constexpr bool is_scaled(ElementType type) { return stored_max(type) != 0; }

// A tensor's scale in device memory. Between steps: `scale` says what the stored elements mean,
// absmax_bits is 0. Within a step absmax_bits collects the largest magnitude of the new values.
struct StateScale {
  float scale;
  uint32_t absmax_bits;
};

// How the tensors of one parameter, or of all parameters of one table, are stored.
struct TensorTypes {
  ElementType grad;      // F32, BF16 or F16, unscaled
  ElementType main;      // F32, BF16, F16 (scaled) or SplitF32
  ElementType state[2];  // None where the rule has fewer
  ElementType model;     // of the second, rounded copy of the parameter: BF16, F16 or None
};

}  // namespace kernels

#pragma once

#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <kernels/element_type.h>
#include <kernels/host_device.h>

namespace kernels {

CKPT_HOST_DEVICE float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

CKPT_HOST_DEVICE uint32_t bits_of_float(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// The value of an element from its bits, in the low end of `bits`. Exact. Not for SplitF32.
CKPT_HOST_DEVICE float decode(ElementType type, uint32_t bits) {
  switch (type) {
    case ElementType::F32: return float_of_bits(bits);
    case ElementType::BF16: return float_of_bits(bits << 16);
    case ElementType::F16: return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    case ElementType::F8E4M3: {
      const __half_raw half =
          __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), __NV_E4M3);
      return __half2float(__half(half));
    }
    default: return 0;
  }
}

// Rounds to nearest, ties to even; E4M3 saturates at +-448. Not for SplitF32.
CKPT_HOST_DEVICE uint32_t encode(ElementType type, float value) {
  switch (type) {
    case ElementType::F32: return bits_of_float(value);
    case ElementType::BF16: return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    case ElementType::F16: return __half_as_ushort(__float2half_rn(value));
    case ElementType::F8E4M3: return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    default: return 0;
  }
}

// Two neighbours at once, the first in the low bits: of a type of one or two bytes.
CKPT_HOST_DEVICE uint32_t encode_two(ElementType type, float first, float second) {
  switch (type) {
    case ElementType::BF16: {
      const __nv_bfloat162_raw both = __floats2bfloat162_rn(first, second);
      return both.x | static_cast<uint32_t>(both.y) << 16;
    }
    case ElementType::F16: {
      const __half2_raw both = __floats2half2_rn(first, second);
      return both.x | static_cast<uint32_t>(both.y) << 16;
    }
    case ElementType::F8E4M3:
      return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
    default: return 0;
  }
}

// F8E4M3, from the low 16 bits.
CKPT_HOST_DEVICE void decode_two_e4m3(uint32_t bits, float& first, float& second) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bits), __NV_E4M3);
  first = __half2float(__ushort_as_half(halves.x));
  second = __half2float(__ushort_as_half(halves.y));
}

// The 16-bit remainder format of Apex's and TransformerEngine's FusedAdam: the bf16 half is the
// upper half of the fp32 bits, plus one where the lower half, as int16, is negative. So the bf16
// half is the fp32 value rounded (exact ties away from zero), and nothing is lost.
struct SplitFloat {
  uint32_t upper;  // bf16 bits
  uint32_t lower;  // int16 bits
};

CKPT_HOST_DEVICE SplitFloat split(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t lower = bits & 0xFFFFU;
  return {((bits >> 16) + (lower >> 15)) & 0xFFFFU, lower};
}

CKPT_HOST_DEVICE float join(SplitFloat parts) {
  const uint32_t lower = parts.lower & 0xFFFFU;
  return float_of_bits(((parts.upper - (lower >> 15)) << 16) | lower);
}

}  // namespace kernels

#pragma once

#include <cuda_fp16.h>

using __nv_fp8_storage_t = uint8_t;
enum __nv_fp8_interpretation_t { __NV_E4M3 };
enum __nv_saturation_t { __NV_SATFINITE };

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t) {
  return {static_cast<uint16_t>(emulation::half_of(emulation::float_of_e4m3(bits)))};
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t,
                                                __nv_fp8_interpretation_t) {
  return static_cast<__nv_fp8_storage_t>(emulation::e4m3_of(value));
}

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
using __nv_fp8x2_storage_t = uint16_t;
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t bits,
                                              __nv_fp8_interpretation_t type) {
  const auto half_of = [&](unsigned byte) {
    return __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(byte), type).x;
  };
  return {half_of(bits & 0xFFU), half_of(bits >> 8U)};
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 values, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t type) {
  const unsigned first = __nv_cvt_float_to_fp8(values.x, saturation, type);
  const unsigned second = __nv_cvt_float_to_fp8(values.y, saturation, type);
  return static_cast<__nv_fp8x2_storage_t>(first | second << 8);
}

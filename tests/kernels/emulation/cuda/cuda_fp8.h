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

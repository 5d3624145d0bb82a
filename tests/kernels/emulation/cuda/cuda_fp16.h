#pragma once

#include "kernels/emulation/narrow_floats.h"

struct __half_raw {
  uint16_t x;
};
struct __half {
  __half_raw raw;
  explicit __half(__half_raw in_raw) : raw(in_raw) {}
};
inline __half __ushort_as_half(uint16_t bits) { return __half(__half_raw{bits}); }
inline uint16_t __half_as_ushort(__half value) { return value.raw.x; }
inline float __half2float(__half value) { return emulation::float_of_half(value.raw.x); }
inline __half __float2half_rn(float value) {
  return __ushort_as_half(static_cast<uint16_t>(emulation::half_of(value)));
}

struct __half2_raw {
  uint16_t x, y;
};
inline __half2_raw __floats2half2_rn(float first, float second) {
  return {__half_as_ushort(__float2half_rn(first)), __half_as_ushort(__float2half_rn(second))};
}

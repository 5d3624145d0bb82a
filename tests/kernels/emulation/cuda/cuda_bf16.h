#pragma once

#include "kernels/emulation/narrow_floats.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return {static_cast<uint16_t>(emulation::bf16_of(value))};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

struct __nv_bfloat162_raw {
  uint16_t x, y;
};
inline __nv_bfloat162_raw __floats2bfloat162_rn(float first, float second) {
  return {__float2bfloat16_rn(first).bits, __float2bfloat16_rn(second).bits};
}

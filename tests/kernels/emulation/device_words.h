#pragma once

// What the kernels' own sources use of CUDA's language when they are compiled as C++, without the
// runtime's calls.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>

#include "kernels/emulation/grid.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one after the other

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1)
      : x(in_x), y(in_y), z(in_z) {}
};

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class Value>
Value __ldcs(const Value* from) {
  emulation::check_aligned(from, sizeof(Value));
  return *from;
}
template <class Value>
void __stcs(Value* to, const Value& value) {
  emulation::check_aligned(to, sizeof(Value));
  *to = value;
}

using Place = std::source_location;

inline void __syncthreads(const Place& place = Place::current()) {
  emulation::wait_for_block(place);
}

constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

inline void check_whole_warp(unsigned mask) {
  if (mask != kWholeWarp) emulation::fail_in_thread("an exchange within a part of a warp");
}

template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance,
                       const Place& place = Place::current()) {
  check_whole_warp(mask);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  emulation::show_to_warp(bits, place);
  const unsigned lane = threadIdx.x % 32;
  bits = emulation::shown_by(lane + distance < 32 ? lane + distance : lane);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                  const Place& place = Place::current()) {
  check_whole_warp(mask);
  emulation::show_to_warp(value, place);
  for (unsigned lane = 0; lane < 32; ++lane) {
    value = std::max(value, static_cast<unsigned>(emulation::shown_by(lane)));
  }
  return value;
}

inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
inline unsigned atomicMax(unsigned* address, unsigned value) {
  const unsigned old = *address;
  *address = std::max(old, value);
  return old;
}

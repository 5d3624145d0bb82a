#pragma once

#include <cstdint>

namespace kernels {

// N neighbouring elements of 1, 2 or 4 bytes as a thread moves them: one contiguous piece of at
// most 16 bytes, or two of them. Elements are read and written once per step, so the loads and
// stores say that they need not stay in the cache.
template <int N>
struct Packed {
  uint32_t words[N];

  // Of elements of four or two bytes.
  __device__ __forceinline__ uint32_t get(int i, int bytes) const {
    return bytes == 4 ? words[i] : words[i / 2] >> (i % 2 * 16) & 0xFFFFU;
  }

  // Elements of two bytes are put in order, 0 first: a word is cleared by its first element.
  __device__ __forceinline__ void put_half(int i, uint32_t bits) {
    words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits << 16;
  }

  // Elements first .. first + N - 1 of an array; first is a multiple of N, the array of 16 bytes.
  __device__ __forceinline__ void load(const void* array, int64_t first, int bytes) {
    const char* const from = static_cast<const char*>(array) + first * bytes;
    const int total = N * bytes;
    if (total >= 16) {
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        if (16 * i >= total) break;
        const uint4 piece = __ldcs(reinterpret_cast<const uint4*>(from) + i);
        words[4 * i] = piece.x;
        words[4 * i + 1] = piece.y;
        words[4 * i + 2] = piece.z;
        words[4 * i + 3] = piece.w;
      }
    } else if (total == 8) {
      const uint2 piece = __ldcs(reinterpret_cast<const uint2*>(from));
      words[0] = piece.x;
      words[1] = piece.y;
    } else if (total == 4) {
      words[0] = __ldcs(reinterpret_cast<const unsigned int*>(from));
    }
  }

  __device__ __forceinline__ void store(void* array, int64_t first, int bytes) const {
    char* const to = static_cast<char*>(array) + first * bytes;
    const int total = N * bytes;
    if (total >= 16) {
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        if (16 * i >= total) break;
        __stcs(reinterpret_cast<uint4*>(to) + i,
               make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]));
      }
    } else if (total == 8) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
    } else if (total == 4) {
      __stcs(reinterpret_cast<unsigned int*>(to), words[0]);
    }
  }
};

// A single element, wherever it lies.
template <>
struct Packed<1> {
  uint32_t words[1];

  __device__ __forceinline__ uint32_t get(int, int) const { return words[0]; }
  __device__ __forceinline__ void put_half(int, uint32_t bits) { words[0] = bits; }
  __device__ __forceinline__ void load(const void* array, int64_t i, int bytes) {
    words[0] = bytes == 4   ? static_cast<const uint32_t*>(array)[i]
               : bytes == 2 ? static_cast<const uint16_t*>(array)[i]
               : bytes == 1 ? static_cast<const uint8_t*>(array)[i]
                            : 0;
  }
  __device__ __forceinline__ void store(void* array, int64_t i, int bytes) const {
    if (bytes == 4) static_cast<uint32_t*>(array)[i] = words[0];
    if (bytes == 2) static_cast<uint16_t*>(array)[i] = static_cast<uint16_t>(words[0]);
    if (bytes == 1) static_cast<uint8_t*>(array)[i] = static_cast<uint8_t>(words[0]);
  }
};

}  // namespace kernels

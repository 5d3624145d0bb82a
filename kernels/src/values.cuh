// Neighbouring elements as they are stored, to fp32 and back: a type that is known only when the
// program runs is looked at once for all of them.
#pragma once

#include <cstdint>

#include <kernels/element.h>

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

// The value, of which the compiler does not know that it is the same in each turn of a loop: what
// depends on it stays a branch, where the loop would be compiled once for every value. `turn`
// differs from turn to turn.
__device__ __forceinline__ uint32_t opaque(uint32_t value, int64_t turn) {
  asm("" : "+r"(value) : "r"(static_cast<uint32_t>(turn)));
  return value;
}
__device__ __forceinline__ float opaque(float value, int64_t turn) {
  return float_of_bits(opaque(bits_of_float(value), turn));
}

template <int N>
struct Values {
  float at[N];
};

// Two neighbours at a time where a word holds as many: one instruction converts both.
template <int N>
__device__ __forceinline__ void decode(ElementType type, const Packed<N>& stored,
                                       Values<N>& values) {
  const int bytes = bytes_of(type);
  switch (type) {
    case ElementType::F32:
    case ElementType::BF16:
    case ElementType::F16:
#pragma unroll
      for (int i = 0; i < N; ++i) values.at[i] = decode(type, stored.get(i, bytes));
      return;
    case ElementType::F8E4M3:
      if constexpr (N == 1) {
        values.at[0] = decode(type, stored.get(0, bytes));
      } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
          decode_two_e4m3(stored.words[i / 4] >> (i % 4 * 8), values.at[i], values.at[i + 1]);
        }
      }
      return;
    default: return;
  }
}

template <int N>
__device__ __forceinline__ void encode(ElementType type, const Values<N>& values,
                                       Packed<N>& stored) {
  if constexpr (N == 1) {
    stored.words[0] = encode(type, values.at[0]);
  } else {
    switch (type) {
      case ElementType::F32:
#pragma unroll
        for (int i = 0; i < N; ++i) stored.words[i] = bits_of_float(values.at[i]);
        return;
      case ElementType::BF16:
      case ElementType::F16:
#pragma unroll
        for (int i = 0; i < N; i += 2) {
          stored.words[i / 2] = encode_two(type, values.at[i], values.at[i + 1]);
        }
        return;
      case ElementType::F8E4M3:
#pragma unroll
        for (int i = 0; i < N; i += 4) {
          stored.words[i / 4] = encode_two(type, values.at[i], values.at[i + 1]) |
                                encode_two(type, values.at[i + 2], values.at[i + 3]) << 16;
        }
        return;
      default: return;
    }
  }
}

// SplitF32's two halves.
template <int N>
__device__ __forceinline__ void join(const Packed<N>& upper, const Packed<N>& lower,
                                     Values<N>& values) {
#pragma unroll
  for (int i = 0; i < N; ++i) values.at[i] = join({upper.get(i, 2), lower.get(i, 2)});
}
template <int N>
__device__ __forceinline__ void split(const Values<N>& values, Packed<N>& upper, Packed<N>& lower) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const SplitFloat parts = split(values.at[i]);
    upper.put_half(i, parts.upper);
    lower.put_half(i, parts.lower);
  }
}

// A parameter as it is stored, and its halves where it is in two.
template <int N>
struct StoredParam {
  Packed<N> main, remainder;

  __device__ __forceinline__ void load(ElementType type, const void* from, const void* lower,
                                       int64_t first) {
    main.load(from, first, bytes_of(type));
    if (type == ElementType::SplitF32) remainder.load(lower, first, 2);
  }
  __device__ __forceinline__ void get(ElementType type, Values<N>& values) const {
    if (type == ElementType::SplitF32) {
      join(main, remainder, values);
    } else {
      decode(type, main, values);
    }
  }
  __device__ __forceinline__ void put(ElementType type, const Values<N>& values) {
    if (type == ElementType::SplitF32) {
      split(values, main, remainder);
    } else {
      encode(type, values, main);
    }
  }
  __device__ __forceinline__ void store(ElementType type, void* to, void* lower,
                                        int64_t first) const {
    main.store(to, first, bytes_of(type));
    if (type == ElementType::SplitF32) remainder.store(lower, first, 2);
  }
};

// The model's copy, which is written only: of BF16, F16 or None; `to` may be null.
template <int N>
__device__ __forceinline__ void store_model(ElementType type, const Values<N>& values, void* to,
                                            int64_t first) {
  const auto address = reinterpret_cast<uintptr_t>(to);
  const auto some_bits = static_cast<uint32_t>(address | address >> 32);
  if (opaque(some_bits, first) == 0) return;
  const uint32_t known = opaque(static_cast<uint32_t>(type), first);
  Packed<N> model;
  if (known == static_cast<uint32_t>(ElementType::BF16)) {
    encode(ElementType::BF16, values, model);
  } else if (known == static_cast<uint32_t>(ElementType::F16)) {
    encode(ElementType::F16, values, model);
  } else {
    return;
  }
  model.store(to, first, 2);
}

}  // namespace kernels

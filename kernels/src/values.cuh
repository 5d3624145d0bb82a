#pragma once

#include <kernels/element.h>

#include "packed.cuh"

// Neighbouring elements as they are stored, to fp32 and back: a type that is known only when the
// program runs is looked at once for all of them.
namespace kernels {

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

#pragma once

#include <cstdint>
#include <optional>

namespace ckpt {

// Sums and products of numbers that come from files: nullopt instead of a wrapped result.

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// True when [offset, offset + count) lies inside [0, total), without computing the sum.
constexpr bool fits(uint64_t offset, uint64_t count, uint64_t total) {
  return offset <= total && count <= total - offset;
}

// The next multiple of `alignment`, a power of two. The caller knows that it does not overflow.
constexpr uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace ckpt

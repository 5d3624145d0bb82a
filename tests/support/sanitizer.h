#pragma once

#include <cstdint>
#include <cstdlib>

namespace test {

// Sanitizer builds are many times slower: exhaustive tests take samples there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

inline bool is_long() { return std::getenv("SHARDWISE_LONG_TESTS") != nullptr; }

// An exhaustive test takes every n-th case: each one in long runs of builds without sanitizers.
inline uint64_t sample_step(uint64_t plain, uint64_t sanitized) {
  if (kIsSanitized) return sanitized;
  return is_long() ? 1 : plain;
}

}  // namespace test

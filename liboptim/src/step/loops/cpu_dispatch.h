#pragma once

#include <bit>
#include <cstdint>

namespace optim {

// What this processor can do, as far as our loops ask.
enum class CpuLevel : uint8_t { Baseline, Avx2Fma, Avx512 };
CpuLevel cpu_level();

// The bf16 nearest to a float, ties to even; NaN is LibTorch's.
[[gnu::always_inline]] inline uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<uint16_t>(is_nan ? 0x7FC0U : nearest);
}

}  // namespace optim

// CKPT_DISPATCHED(name, (parameters), (arguments)) defines `void name(parameters)` that runs
// `name_body`, an always-inline function, compiled for the processor that it finds. Bodies use no
// operation whose rounding depends on the instruction set: fused multiply-adds are written as such.
#ifdef __x86_64__
#define CKPT_DISPATCHED(name, parameters, arguments)                                            \
  __attribute__((                                                                               \
      target("arch=x86-64-v4,prefer-vector-width=512"))) static void name##_avx512 parameters { \
    name##_body arguments;                                                                      \
  }                                                                                             \
  __attribute__((target("arch=x86-64-v3"))) static void name##_avx2 parameters {                \
    name##_body arguments;                                                                      \
  }                                                                                             \
  static void name##_baseline parameters { name##_body arguments; }                             \
  void name parameters {                                                                        \
    switch (cpu_level()) {                                                                      \
      case CpuLevel::Avx512: return name##_avx512 arguments;                                    \
      case CpuLevel::Avx2Fma: return name##_avx2 arguments;                                     \
      case CpuLevel::Baseline: return name##_baseline arguments;                                \
    }                                                                                           \
  }
#else
#define CKPT_DISPATCHED(name, parameters, arguments) \
  void name parameters { name##_body arguments; }
#endif

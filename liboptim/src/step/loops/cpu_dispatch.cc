#include "step/loops/cpu_dispatch.h"

namespace optim {

CpuLevel cpu_level() {
#ifdef __x86_64__
  static const CpuLevel level = [] {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi2");
    const bool has_avx512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd");
    if (has_avx2 && has_avx512) return CpuLevel::Avx512;
    return has_avx2 ? CpuLevel::Avx2Fma : CpuLevel::Baseline;
  }();
  return level;
#else
  return CpuLevel::Baseline;
#endif
}

}  // namespace optim

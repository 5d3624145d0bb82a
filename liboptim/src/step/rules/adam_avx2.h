// Adam's loops for processors with AVX2 and FMA, and without AVX-512.
#pragma once

#include "step/rules/adam_kernel.h"

namespace optim {

// Whether this processor runs them, and `roots` are a sequence that they have.
bool has_avx2_loop(const SquareRoots& roots);

// Update elements from the first on, four vectors of eight at a time, and say how many: fewer than
// 32 are left, or they stopped behind elements whose square roots are LibTorch's alone.
int64_t adam_update_avx2(const AdamSpan& span, const AdamScalars& s, const SquareRoots& roots);
int64_t fused_adam_update_avx2(const AdamSpan& span, const FusedAdamScalars& s,
                               const SquareRoots& roots);

}  // namespace optim

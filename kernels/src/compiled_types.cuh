#pragma once

#include "update_kernel.cuh"

namespace kernels {

// The modes of training runs that are compiled in; others work, with their types read at run time.
constexpr ElementType kF32 = ElementType::F32, kBF16 = ElementType::BF16, kF16 = ElementType::F16,
                      kF8 = ElementType::F8E4M3, kSplit = ElementType::SplitF32;

template <class Formula>
using AdamUpdates =
    Updates<Formula, FixedTypes<kF32, kF32, kF32, kF32>, FixedTypes<kBF16, kF32, kF32, kF32>,
            FixedTypes<kF32, kSplit, kF32, kF32>, FixedTypes<kBF16, kSplit, kF32, kF32>,
            FixedTypes<kF32, kF32, kBF16, kBF16>, FixedTypes<kBF16, kSplit, kBF16, kBF16>,
            FixedTypes<kBF16, kF32, kF16, kF16>, FixedTypes<kBF16, kF32, kF8, kF8>,
            FixedTypes<kBF16, kSplit, kF8, kF8>, FixedTypes<kBF16, kBF16, kBF16, kBF16>>;

template <class Formula>
using OneStateUpdates = Updates<Formula, FixedTypes<kF32, kF32, kF32, ElementType::None>,
                                FixedTypes<kBF16, kF32, kF32, ElementType::None>>;

}  // namespace kernels

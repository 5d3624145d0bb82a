#pragma once

#include "update_kernel.cuh"

namespace kernels {

// The modes of training runs that are compiled in; others work, with their types read at run time.
constexpr ElementType kF32 = ElementType::F32, kBF16 = ElementType::BF16, kF16 = ElementType::F16,
                      kF8 = ElementType::F8E4M3, kSplit = ElementType::SplitF32,
                      kNone = ElementType::None;

// Gradients and masters of a training run, with every type of states.
template <ElementType kGrad, ElementType kMain>
using WithAllStates =
    TypeSets<FixedTypes<kGrad, kMain, kF32, kF32>, FixedTypes<kGrad, kMain, kBF16, kBF16>,
             FixedTypes<kGrad, kMain, kF16, kF16>, FixedTypes<kGrad, kMain, kF8, kF8>>;

using AdamTypes = Joined<WithAllStates<kF32, kF32>, WithAllStates<kBF16, kF32>,
                         WithAllStates<kF32, kSplit>, WithAllStates<kBF16, kSplit>,
                         TypeSets<FixedTypes<kBF16, kBF16, kBF16, kBF16>, AnyTypes>>;

using OneStateTypes =
    TypeSets<FixedTypes<kF32, kF32, kF32, kNone>, FixedTypes<kBF16, kF32, kF32, kNone>, AnyTypes>;

}  // namespace kernels

#pragma once

#include <span>

#include "step/rules/square_roots.h"

namespace optim {

struct OwnRoots {
  RootSequence sequence;
  TakeRoots take;
};

// Ways to take square roots of usual numbers that this processor has, for a multiple of 16
// elements each. Which of them is LibTorch's depends on the processor and on MKL.
std::span<const OwnRoots> own_roots();

}  // namespace optim

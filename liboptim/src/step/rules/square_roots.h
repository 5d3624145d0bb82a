#pragma once

#include <cstdint>
#include <span>

namespace optim {

// Replaces `count` numbers by their square roots.
using TakeRoots = void (*)(float* values, int64_t count);

// What is computed, so that a loop of its own can do it without a call.
enum class RootSequence : uint8_t {
  Library,      // by LibTorch's call
  Estimate14,   // by_rsqrt14() of own_roots.cc
  FusedNewton,  // fused_newton_roots(), newton_roots() of avx2_roots.h
  Newton,
  Rounded,    // correctly rounded, as the processor's own
  Processor,  // the same of any number, whatever at::sqrt makes of it
};

// Square roots with the bits of at::sqrt in this process, and how they are best taken.
struct SquareRoots {
  RootSequence sequence;
  TakeRoots take;
  int64_t block;    // elements per call that are best; 0: all there are
  bool only_usual;  // of numbers that has_usual_root() and of a multiple of 16 of them
};
// What stays in registers and the nearest cache, between the loops before and after the root.
inline constexpr int64_t kRootsAtATime = 64;

// LibTorch's own: a call, during which nothing else can be computed.
void torch_square_roots(float* values, int64_t count);

inline constexpr SquareRoots kLibraryRoots = {RootSequence::Library, torch_square_roots, 0, false};

// Where steps of ours give the same bits on this processor, these, else LibTorch's. Found out once
// in a process, by comparing 2^24 roots; updates of few elements do without it until then.
SquareRoots square_roots_for(int64_t elements);

// The bits of 2^-100 and 2^100.
inline constexpr uint32_t kUsualRootsBegin = (127U - 100U) << 23U;
inline constexpr uint32_t kUsualRootsEnd = (127U + 100U) << 23U;
// Zero, or far enough from the smallest and largest numbers that no step of a root leaves them.
[[gnu::always_inline]] inline bool has_usual_root(uint32_t bits) {
  return bits - kUsualRootsBegin < kUsualRootsEnd - kUsualRootsBegin || bits == 0;
}

struct OwnRoots {
  RootSequence sequence;
  TakeRoots take;
};

// Ways to take square roots of usual numbers that this processor has, for a multiple of 16
// elements each. Which of them is LibTorch's depends on the processor and on MKL.
std::span<const OwnRoots> own_roots();

}  // namespace optim

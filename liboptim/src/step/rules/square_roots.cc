#include "step/rules/square_roots.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sqrt.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "step/rules/chunks.h"

namespace optim {
namespace {

// A mantissa decides the root, with the parity of the exponent: both octaves of [1/2, 2).
constexpr uint32_t kOctavesBegin = 126U << 23U, kOctavesEnd = 128U << 23U;
// That the other exponents scale the root: one number in 4099 of all usual ones.
constexpr uint32_t kStride = 4099;

struct Numbers {
  uint32_t begin, end, stride;
  int64_t count() const { return (end - begin + stride - 1) / stride; }
};

bool agree(TakeRoots take, const Numbers& numbers, int64_t begin, int64_t count) {
  std::vector<float> ours(static_cast<size_t>((count + 15) / 16 * 16), 1.0F);
  for (int64_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint32_t>(begin + i);
    ours[static_cast<size_t>(i)] = std::bit_cast<float>(numbers.begin + position * numbers.stride);
  }
  std::vector<float> torchs = ours;
  take(ours.data(), count);
  torch_square_roots(torchs.data(), count);
  return std::memcmp(ours.data(), torchs.data(), static_cast<size_t>(count) * sizeof(float)) == 0;
}

bool gives_torchs_bits(TakeRoots take) {
  std::atomic<bool> same = agree(take, {0, 1, 1}, 0, 1);
  for (const Numbers& numbers : {Numbers{kUsualRootsBegin, kUsualRootsEnd, kStride},
                                 Numbers{kOctavesBegin, kOctavesEnd, 1}}) {
    if (!same) break;
    for_each_chunk(numbers.count(), [&](int64_t begin, int64_t count) {
      if (same && !agree(take, numbers, begin, count)) same = false;
    });
  }
  return same;
}

SquareRoots best_square_roots() {
  for (const OwnRoots& own : own_roots()) {
    if (gives_torchs_bits(own.take)) return {own.sequence, own.take, kRootsAtATime, true};
  }
  return kLibraryRoots;
}

}  // namespace

void torch_square_roots(float* values, int64_t count) {
  const at::NoGradGuard no_grad;
  at::from_blob(values, {count}, at::kFloat).sqrt_();
}

SquareRoots square_roots_for(int64_t elements) {
  constexpr int64_t kWorthComparing = int64_t{1} << 22;
  static std::atomic<bool> compared = false;
  if (!compared && elements < kWorthComparing) return kLibraryRoots;
  static const SquareRoots best = best_square_roots();
  compared = true;
  return best;
}

}  // namespace optim

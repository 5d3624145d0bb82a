#include "step/loops/grad_stats_kernels.h"

#include <ATen/Parallel.h>

#include <ckpt/error.h>
#include <algorithm>
#include <string>
#include <vector>

#include "step/loops/cpu_dispatch.h"

namespace optim {
namespace {

constexpr int64_t kBlockElements = kStatsBlockElements;
constexpr int64_t kLanes = 16;

double add_lanes(std::array<double, kLanes>& sums) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      sums[static_cast<size_t>(lane)] += sums[static_cast<size_t>(lane + width)];
    }
  }
  return sums[0];
}

// Products of two fp32 values are exact in fp64: fused or not, the sum is the same.
[[gnu::always_inline]] inline void square_lanes_body(const float* values, int64_t count,
                                                     double* sums) {
  for (int64_t i = 0; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
}
CKPT_DISPATCHED(square_lanes, (const float* values, int64_t count, double* sums),
                (values, count, sums))

double block_sum_of_squares(const float* values, int64_t count) {
  std::array<double, kLanes> sums = {};
  square_lanes(values, count, sums.data());
  for (int64_t i = count / kLanes * kLanes, lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    sums[static_cast<size_t>(lane)] += value * value;
  }
  return add_lanes(sums);
}

[[gnu::always_inline]] inline void zeros_body(const float* values, int64_t count, float scale,
                                              int64_t* zeros) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] * scale == 0.0F ? 1 : 0;
  *zeros = found;
}
CKPT_DISPATCHED(zeros, (const float* values, int64_t count, float scale, int64_t* found),
                (values, count, scale, found))

void check(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  if (is_known && tensor.device().is_cpu() && tensor.is_contiguous()) return;
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    std::string("expected gradients that are contiguous float32, bfloat16 or "
                                "float16 tensors on the CPU, found ") +
                        c10::toString(type));
}

// The sum of f(values, count) of each block as fp32: in parallel, then added in their order.
template <class Result, class F>
Result over_blocks(const at::Tensor& tensor, F&& f) {
  check(tensor);
  const int64_t count = tensor.numel();
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  std::vector<Result> results(static_cast<size_t>(block_count));
  const bool is_fp32 = tensor.scalar_type() == at::kFloat;
  const at::Tensor flat = tensor.view({-1});
  at::parallel_for(0, block_count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockElements;
      const int64_t size = std::min(kBlockElements, count - first);
      const at::Tensor converted = is_fp32 ? flat : flat.narrow(0, first, size).to(at::kFloat);
      const float* const values = converted.const_data_ptr<float>() + (is_fp32 ? first : 0);
      results[static_cast<size_t>(block)] = f(values, size);
    }
  });
  Result total = 0;
  for (const Result result : results) total += result;
  return total;
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  return over_blocks<double>(tensor, block_sum_of_squares);
}

void BlockSums::add_squares(const at::Tensor& values, int64_t first) {
  check(values);
  const at::Tensor fp32 = values.to(at::kFloat);
  const auto* const elements = fp32.const_data_ptr<float>();
  for (int64_t i = 0; i < fp32.numel(); ++i) {
    const auto value = static_cast<double>(elements[i]);
    lanes[static_cast<size_t>((first + i) % kLanes)] += value * value;
  }
}

double BlockSums::total() const {
  std::array<double, kLanes> sums = lanes;
  return add_lanes(sums);
}

int64_t count_zeros(const at::Tensor& tensor, float scale) {
  return over_blocks<int64_t>(tensor, [scale](const float* values, int64_t count) {
    int64_t found = 0;
    zeros(values, count, scale, &found);
    return found;
  });
}

}  // namespace optim

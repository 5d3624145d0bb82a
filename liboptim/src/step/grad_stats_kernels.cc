#include "step/grad_stats_kernels.h"

#include <ATen/Parallel.h>

#include <ckpt/error.h>
#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace optim {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 14;
constexpr int64_t kLanes = 16;

template <class Element>
double block_sum_of_squares(const Element* values, int64_t count) {
  std::array<double, kLanes> sums = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(static_cast<float>(values[i + lane]));
      sums[static_cast<size_t>(lane)] += value * value;  // exact product: fused or not, same sum
    }
  }
  for (int64_t lane = 0; i + lane < count; ++lane) {
    const auto value = static_cast<double>(static_cast<float>(values[i + lane]));
    sums[static_cast<size_t>(lane)] += value * value;
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      sums[static_cast<size_t>(lane)] += sums[static_cast<size_t>(lane + width)];
    }
  }
  return sums[0];
}

template <class Element>
int64_t block_zeros(const Element* values, int64_t count) {
  int64_t zeros = 0;
  for (int64_t i = 0; i < count; ++i) zeros += static_cast<float>(values[i]) == 0.0F ? 1 : 0;
  return zeros;
}

// f(values, count) of each block, in parallel; the results added up in the order of the blocks.
template <class Result, class Element, class F>
Result sum_over_blocks(const at::Tensor& tensor, F&& f) {
  const auto* const values = tensor.const_data_ptr<Element>();
  const int64_t count = tensor.numel();
  const int64_t block_count = (count + kBlockElements - 1) / kBlockElements;
  std::vector<Result> results(static_cast<size_t>(block_count));
  at::parallel_for(0, block_count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockElements;
      results[static_cast<size_t>(block)] =
          f(values + first, std::min(kBlockElements, count - first));
    }
  });
  Result total = 0;
  for (const Result result : results) total += result;
  return total;
}

[[noreturn]] void refuse(const at::Tensor& tensor) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    std::string("gradients are float32 or bfloat16 on the CPU, not ") +
                        c10::toString(tensor.scalar_type()));
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) {
    return sum_over_blocks<double, float>(tensor, block_sum_of_squares<float>);
  }
  if (tensor.scalar_type() == at::kBFloat16) {
    return sum_over_blocks<double, at::BFloat16>(tensor, block_sum_of_squares<at::BFloat16>);
  }
  refuse(tensor);
}

int64_t count_zeros(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) {
    return sum_over_blocks<int64_t, float>(tensor, block_zeros<float>);
  }
  if (tensor.scalar_type() == at::kBFloat16) {
    return sum_over_blocks<int64_t, at::BFloat16>(tensor, block_zeros<at::BFloat16>);
  }
  refuse(tensor);
}

}  // namespace optim

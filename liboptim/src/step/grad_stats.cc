#include "step/grad_stats.h"

#include <cmath>

#include "step/grad_stats_kernels.h"

namespace optim {
namespace {

bool counts(const OptimizedParam& param) {
  return param.grad.defined() && !param.model.info.attributes.shared;
}

constexpr double kClipEpsilon = 1e-6;  // Megatron's clip_grads.py

}  // namespace

double square_sum_for_norm(const OptimizedParam& param) {
  return counts(param) ? sum_of_squares(param.grad) : 0;
}

int64_t zeros_in_grad(const OptimizedParam& param) {
  return counts(param) ? count_zeros(param.grad) : 0;
}

double norm_of(std::span<const double> square_sums) {
  double total = 0;
  for (const double sum : square_sums) total += sum;
  return std::sqrt(total);
}

double clip_coefficient(double max_norm, double total_norm) {
  return max_norm / (total_norm + kClipEpsilon);
}

}  // namespace optim

#include "step/optimizer/peers_and_device.h"

#include <ckpt/error.h>
#include <optim/grad_stats.h>
#include <algorithm>
#include <cmath>

#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

bool counts(const OptimizedParam& param) {
  return param.grad.defined() && !param.model.info.attributes.shared && !param.is_duplicate;
}

constexpr double kClipEpsilon = 1e-6;  // Megatron's clip_grads.py

}  // namespace

double square_sum_for_norm(const OptimizedParam& param) {
  if (!param.grad.defined()) return 0;
  const double sum = sum_of_squares(param.grad);
  return counts(param) || !std::isfinite(sum) ? sum : 0;
}

int64_t zeros_in_grad(const OptimizedParam& param, double grad_scale) {
  return counts(param) ? count_zeros(param.grad, static_cast<float>(grad_scale)) : 0;
}

double norm_of(std::span<const double> square_sums) {
  double total = 0;
  for (const double sum : square_sums) total += sum;
  return std::sqrt(total);
}

double grad_norm(std::span<const at::Tensor> grads, double norm_type) {
  if (!(norm_type > 0)) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = "norm_type"},
                      "is not positive");
  }
  double total = 0;
  for (const at::Tensor& grad : grads) {
    if (std::isinf(norm_type)) {
      const double largest = largest_magnitude(grad);
      total = std::isnan(total) || std::isnan(largest) ? std::nan("") : std::max(total, largest);
    } else {
      total += norm_type == 2 ? sum_of_squares(grad) : sum_of_powers(grad, norm_type);
    }
  }
  if (std::isinf(norm_type)) return total;
  return norm_type == 2 ? std::sqrt(total) : std::pow(total, 1 / norm_type);
}

int64_t count_zeros(std::span<const at::Tensor> grads) {
  int64_t zeros = 0;
  for (const at::Tensor& grad : grads) zeros += count_zeros(grad, 1);
  return zeros;
}

double clip_coefficient(double max_norm, double total_norm) {
  return max_norm / (total_norm + kClipEpsilon);
}

}  // namespace optim

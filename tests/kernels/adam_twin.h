#pragma once

#include <cmath>

#include <kernels/multi_tensor_adam.h>

namespace kernels {

// multi_tensor_adam on the CPU, one element after the other: same operations, same rounding. Here
// `tensor` points to host memory. Compile without -ffast-math and with -ffp-contract=off.
inline void adam_twin(const AdamTensor& tensor, const AdamConfig& config) {
  const double step = static_cast<double>(config.step);
  const float decay = static_cast<float>(1 - config.lr * config.weight_decay);
  const float weight1 = static_cast<float>(1 - config.beta1);
  const float weight2 = static_cast<float>(1 - config.beta2);
  const float beta2 = static_cast<float>(config.beta2);
  const float correction = static_cast<float>(std::sqrt(1 - std::pow(config.beta2, step)));
  const float eps = static_cast<float>(config.eps);
  const float scale = static_cast<float>(-config.lr / (1 - std::pow(config.beta1, step)));
  for (int64_t i = 0; i < tensor.count; ++i) {
    const float grad = tensor.grad[i];
    float& m = tensor.exp_avg[i];
    float& v = tensor.exp_avg_sq[i];
    tensor.param[i] *= decay;
    m += weight1 * (grad - m);
    v = v * beta2 + weight2 * grad * grad;
    tensor.param[i] += scale * m / (std::sqrt(v) / correction + eps);
  }
}

}  // namespace kernels

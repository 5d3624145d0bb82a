// One layer-wise distributed Muon step of a weight and a bias, in one process.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <optim/layer_wise_optimizer.h>

namespace {

optim::Param param(const char* name, std::vector<int64_t> shape) {
  return {.info = {.name = name,
                   .shape = shape,
                   .dtype = ckpt::DType::BFloat16,
                   .attributes = optim::megatron_attributes(name, shape.size())},
          .param = at::zeros(shape, at::kBFloat16),
          .main_grad = at::ones(shape, at::kFloat)};
}

}  // namespace

int main() {
  const std::vector<optim::Param> params = {param("decoder.layers.0.mlp.linear_fc1.weight", {4, 8}),
                                            param("decoder.layers.0.mlp.linear_fc1.bias", {4})};
  optim::OptimizerConfig config;
  config.optimizer = "muon";
  config.lr = 0.01;
  config.bf16 = true;
  config.use_layer_wise_distributed_optimizer = true;
  const auto optimizer = optim::get_megatron_optimizer(config, params);
  const optim::StepResult result = optimizer->step();

  const double grad_norm = result.grad_norm->get();
  std::printf("updated %d, gradient norm %g of 36 ones\n", result.update_successful, grad_norm);
  for (const optim::Param& p : params) {
    const float first = p.param.flatten()[0].item<float>();
    std::printf("%s moved to %g\n", p.info.name.c_str(), first);
    if (!(first < 0)) return 1;
  }
  return result.update_successful && std::abs(grad_norm - 6) < 1e-6 ? 0 : 1;
}

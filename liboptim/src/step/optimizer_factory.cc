#include <optim/layer_wise_optimizer.h>

#include <utility>

namespace optim {

std::unique_ptr<LayerWiseDistributedOptimizer> get_megatron_optimizer(
    const OptimizerConfig& config, std::vector<Param> params,
    const MegatronOptimizerOptions& options) {
  config.validate();
  const ConfigOverrides overrides =
      options.overrides ? *options.overrides : get_standard_config_overrides(config);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::vector<OptimizerGroup>& groups :
       make_optimizer_groups(std::move(params), config, overrides, options.qkv_split)) {
    optimizers.push_back(
        std::make_unique<FP32Optimizer>(std::move(groups), config, /*wrapped_later=*/true));
  }
  return std::make_unique<LayerWiseDistributedOptimizer>(std::move(optimizers), config,
                                                         options.groups, options.layer_wise);
}

}  // namespace optim

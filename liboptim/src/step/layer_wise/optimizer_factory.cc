#include <optim/layer_wise_optimizer.h>

#include <ckpt/error.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "step/communication/collectives.h"
#include "step/layer_wise/optimizer_factory.h"

namespace optim {

// What the reference calls logging the configuration: one file per process.
void write_config(const OptimizerConfig& config, const ProcessGroupCollection& groups) {
  if (config.config_logger_dir.empty()) return;
  const std::filesystem::path folder = config.config_logger_dir;
  const int rank = rank_in(groups.world ? groups.world : groups.dp_cp).rank;
  const std::filesystem::path file =
      folder / ("optimizer_config.rank_" + std::to_string(rank) + ".json");
  std::error_code ignored;  // what went wrong shows when the file is written
  std::filesystem::create_directories(folder, ignored);
  std::ofstream stream(file);
  stream << to_json(config) << '\n';
  if (stream.flush()) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {.file = file.string()},
                    "the configuration cannot be written");
}

GroupingOptions grouping_options(const OptimizerConfig& config, std::span<const Param> params,
                                 const MegatronOptimizerOptions& options) {
  GroupingOptions grouping = {
      .overrides = options.overrides ? *options.overrides : get_standard_config_overrides(config),
      .qkv_split = options.qkv_split,
      .era = options.era,
      .adam_arithmetic = options.adam_arithmetic,
      .newton_schulz_iteration = options.newton_schulz_iteration};
  if (!options.groups.world) return grouping;
  std::vector<ParamInfo> infos;
  for (const Param& param : params) infos.push_back(param.info);
  grouping.keys_of_all_ranks =
      gather_group_keys(options.groups.world, get_group_keys(infos, config, grouping.overrides));
  return grouping;
}

std::unique_ptr<LayerWiseDistributedOptimizer> get_megatron_optimizer(
    const OptimizerConfig& config, std::vector<Param> params,
    const MegatronOptimizerOptions& options) {
  config.validate();
  write_config(config, options.groups);
  const GroupingOptions grouping = grouping_options(config, params, options);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::vector<OptimizerGroup>& groups :
       make_optimizer_groups(std::move(params), config, grouping)) {
    optimizers.push_back(
        std::make_unique<FP32Optimizer>(std::move(groups), config, /*wrapped_later=*/true));
  }
  return std::make_unique<LayerWiseDistributedOptimizer>(std::move(optimizers), config,
                                                         options.groups, options.layer_wise);
}

}  // namespace optim

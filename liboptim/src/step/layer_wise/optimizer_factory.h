#pragma once

#include <span>

#include <optim/layer_wise_optimizer.h>

// What the makers of optimizers for several processes have in common.
namespace optim {

// One file per process, where config.config_logger_dir says. Throws Error(IoFailure).
void write_config(const OptimizerConfig& config, const ProcessGroupCollection& groups);

// Collective over groups.world where that is set: every rank has the same groups.
GroupingOptions grouping_options(const OptimizerConfig& config, std::span<const Param> params,
                                 const MegatronOptimizerOptions& options);

}  // namespace optim

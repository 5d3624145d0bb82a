#pragma once

#include <span>
#include <vector>

#include <optim/layout_export.h>
#include <optim/param_group.h>

namespace optim {

// get_param_groups() as the reference of core 0.18-dev groups: it stores muon_scalar_optimizer and
// does not read it, so that adam updates what an emerging optimizer leaves. Throws what
// validate_overrides() throws, too.
// Source: default_param_overrides of megatron/core/optimizer/emerging_optimizers.py.
OPTIM_LAYOUT_EXPORT std::vector<ParamGroup> get_param_groups(std::span<const ParamInfo> params,
                                                             const OptimizerConfig& config,
                                                             const ConfigOverrides& overrides,
                                                             ReferenceRules rules);

}  // namespace optim

#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kFusedAdamLaunches = kLaunches<FusedAdamFormula, AdamTypes>;

}  // namespace kernels

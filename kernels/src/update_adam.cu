#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kAdamLaunches = kLaunches<AdamFormula, AdamTypes>;

}  // namespace kernels

#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kAdamLaunches = {&AdamUpdates<AdamFormula>::launch, &launch_absmax<AdamFormula>};

}  // namespace kernels

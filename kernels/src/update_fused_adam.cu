#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kFusedAdamLaunches = {&AdamUpdates<FusedAdamFormula>::launch,
                                         &launch_absmax<FusedAdamFormula>};

}  // namespace kernels

#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kLionLaunches = {&OneStateUpdates<LionFormula>::launch,
                                    &launch_absmax<LionFormula>};

}  // namespace kernels

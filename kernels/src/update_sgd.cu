#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kSgdLaunches = {&OneStateUpdates<SgdFormula>::launch,
                                   &launch_absmax<SgdFormula>};

}  // namespace kernels

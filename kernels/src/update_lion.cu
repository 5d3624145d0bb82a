#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kLionLaunches = kLaunches<LionFormula, OneStateTypes>;

}  // namespace kernels

#include "compiled_types.cuh"

namespace kernels {

const RuleLaunches kSgdLaunches = kLaunches<SgdFormula, OneStateTypes>;

}  // namespace kernels

#pragma once

#include <optim/export.h>

namespace optim {

// coeff = max_norm / (total_norm + 1e-6); gradients shrink by it where it is below 1.
OPTIM_EXPORT double clip_coefficient(double max_norm, double total_norm);

}  // namespace optim

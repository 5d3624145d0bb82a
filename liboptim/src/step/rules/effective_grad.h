#pragma once

#include <optim/update_rule.h>

namespace optim {

// fp32(grad * grad_scale): the caller's own tensor where that is fp32 and the scale is 1.
at::Tensor effective_grad(const UpdateItem& item);

// Decay that comes before everything else. L2 changes `grad`.
void apply_decay(WeightDecayMethod method, const UpdateItem& item, at::Tensor& grad);

// Copies the parameter to `rounded` where that is wanted.
void write_rounded(const UpdateTarget& target);

}  // namespace optim

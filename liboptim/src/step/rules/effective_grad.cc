#include "step/rules/effective_grad.h"

#include <ATen/ops/mul.h>

namespace optim {

at::Tensor effective_grad(const UpdateItem& item) {
  const at::Tensor grad = item.target.grad.to(at::kFloat);
  return item.context.grad_scale == 1 ? grad : at::mul(grad, item.context.grad_scale);
}

void apply_decay(WeightDecayMethod method, const UpdateItem& item, at::Tensor& grad) {
  const double wd = item.context.weight_decay;
  const double lr = item.context.lr;
  if (wd == 0) return;
  at::Tensor param = item.target.param;
  switch (method) {
    case WeightDecayMethod::Decoupled: param.add_(param, -wd * lr); break;
    case WeightDecayMethod::Independent: param.add_(param, -wd); break;
    case WeightDecayMethod::L2: grad.add_(param, wd); break;
    case WeightDecayMethod::Palm: param.add_(param, -wd * lr * lr); break;
  }
}

void write_rounded(const UpdateTarget& target) {
  if (target.rounded.defined()) at::Tensor(target.rounded).copy_(target.param);
}

}  // namespace optim

#pragma once

#include <cstdint>

#include <kernels/rules.h>
#include <kernels/tensor_table.h>

namespace optim {

// Elements that the CPU updates in a step on a device, with the bits that its kernels give them:
// the formulas and conversions are theirs.
struct ElementSpan {
  kernels::RuleKind rule = kernels::RuleKind::Adam;  // any but Muon
  kernels::RuleScalars scalars = {};
  float inverse_loss_scale = 1, clip = 1;
  const void* grad = nullptr;
  kernels::ElementType grad_type = kernels::ElementType::F32;  // F32, BF16 or F16
  float* main = nullptr;
  float* state[2] = {};   // null: the rule has none
  void* model = nullptr;  // receives main, rounded; null: there is no copy
  kernels::ElementType model_type = kernels::ElementType::None;  // BF16 or F16
  int64_t count = 0;

  ElementSpan part(int64_t begin, int64_t size) const;
};

void update_elements(const ElementSpan& span);

}  // namespace optim

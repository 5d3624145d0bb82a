#pragma once

#include <cstdint>

#include <kernels/device_step.h>
#include <kernels/newton_schulz.h>
#include <kernels/symmetric_plan.h>

#define CKPT_C_API extern "C" __attribute__((visibility("default")))

constexpr int kStepsMax = 16;

// Fields as ctypes sees them; kernels.py has the same in the same order.
struct CGroup {
  double lr, weight_decay, beta1, beta2, eps, extra_scale;
  int64_t step;
  int32_t rule, decay, bias_correction, nesterov;
  int32_t ns_steps, ns_type, tf32, scale_mode;
  float coefficients[kStepsMax][3];
};

kernels::StepGroup group_of(const CGroup& c);

// rows, columns, batch, blocks of symmetric products; -1: choose_blocks(); our own kernel: -2 with
// tiles alone, -3 in pairs
kernels::NewtonSchulzShape shape_of(const int64_t* numbers, int type);

// What plan_symmetric()'s model says of the gram: seconds of the whole product, of blocks (0:
// none), of tiles alone and in pairs; then the tile's rows and columns.
void model_of(const kernels::DeviceRates& rates, const kernels::SymmetricShape& gram, int64_t block,
              double* numbers);
kernels::SymmetricShape gram_of(const kernels::NewtonSchulzShape& shape);

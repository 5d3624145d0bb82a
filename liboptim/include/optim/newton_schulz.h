#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <optim/export.h>
#include <optim/update_modes.h>

namespace optim {

// One step of the iteration: A = X X^T, B = b A + c A A, X = a X + B X.
struct NewtonSchulzStep {
  double a = 0, b = 0, c = 0;
  bool operator==(const NewtonSchulzStep&) const = default;
};

// The coefficients of step `index` >= 0. Past the end of its table a type repeats its last row
// (polar_express, cans, deepseekv4) or starts again (simple, quintic, aol). Custom has no table:
// Error(InvalidArgument).
OPTIM_EXPORT NewtonSchulzStep newton_schulz_step(NsCoefficients type, int64_t index);

struct NewtonSchulzOptions {
  int64_t steps = 5;  // 1 to kNewtonSchulzStepsMax; Cubic5: exactly 5
  NsCoefficients coefficients = NsCoefficients::Quintic;
  std::vector<NewtonSchulzStep> custom = {};  // the rows of Custom; past their end they start again
  // Highest and High: fp32 products. Medium: one cast to bf16, then bf16 products that accumulate
  // in fp32 and round once each, the scaled addend included.
  MatmulPrecision precision = MatmulPrecision::Medium;
};

// Pushes the singular values of a matrix towards 1 (Muon's orthogonalisation, as
// emerging_optimizers 0.3 computes it): divides by the Frobenius norm, iterates on the wide
// orientation, gives back fp32 of the same shape.
//
// `x`: fp32, 2-D, on the CPU. Throws Error(InvalidArgument) for anything else, for steps that are
// not 1 to kNewtonSchulzStepsMax and for coefficients that do not fit. The same matrix gives the
// same bits for any number of threads and whatever it is a view of; LibTorch's matrix products may
// depend on the processor.
OPTIM_EXPORT at::Tensor newton_schulz(const at::Tensor& x, const NewtonSchulzOptions& options = {});

}  // namespace optim

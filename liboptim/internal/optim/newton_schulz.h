#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include <optim/newton_schulz_options.h>
#include <optim/update_modes.h>

namespace optim {

// The coefficients of step `index` >= 0. Past the end of its table a type repeats its last row
// (polar_express, cans, deepseekv4) or starts again (simple, quintic, aol). Custom has no table:
// Error(InvalidArgument).
NewtonSchulzStep newton_schulz_step(NsCoefficients type, int64_t index);

// The coefficients of every step that `options` ask for: the table's, or of Custom the caller's own
// rows. Error(InvalidArgument) for steps that are not 1 to kNewtonSchulzStepsMax and for
// coefficients that do not fit.
std::vector<NewtonSchulzStep> newton_schulz_steps(const NewtonSchulzOptions& options);

// Whether a matrix of this shape is iterated on its Gram matrix: the larger side is at least twice
// the smaller one, and the options ask for it.
bool iterates_on_gram(const NewtonSchulzOptions& options, int64_t rows, int64_t columns);

// Pushes the singular values of a matrix towards 1 (Muon's orthogonalisation, as
// emerging_optimizers 0.3 computes it): divides by the Frobenius norm, iterates on the wide
// orientation, gives back fp32 of the same shape.
//
// `x`: fp32, 2-D, on the CPU. Throws Error(InvalidArgument) for anything else and for options that
// newton_schulz_steps() refuses. The same matrix gives the same bits for any number of threads and
// whatever it is a view of; LibTorch's matrix products may depend on the processor.
at::Tensor newton_schulz(const at::Tensor& x, const NewtonSchulzOptions& options = {});

}  // namespace optim

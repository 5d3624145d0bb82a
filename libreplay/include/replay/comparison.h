#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <replay/export.h>

namespace optim {

// How far `ours` is from `expected`. Elements of equal bits differ by 0, NaNs included; any other
// pair with a NaN, or with an infinity on one side, differs by infinity.
struct Difference {
  double max_abs = 0;     // |a - b|
  double max_rel = 0;     // |a - b| / max(|b|, 1e-3 max|b|)
  double max_scaled = 0;  // max|a - b| / max|b|
  double max_ulp = 0;     // max|a - b| in units in the last place of max|b|, in b's element type
  double square_sum = 0;  // of a - b
  int64_t differing = 0;  // elements whose bits differ
  double excess = 0;      // max (|a - b| - rtol |b|), for a tolerance atol + rtol |b|
};

// Tensors of one shape and floating element type, contiguous, on the CPU; else
// Error(InvalidArgument). `rtol` enters `excess` only.
REPLAY_EXPORT Difference compare(const at::Tensor& ours, const at::Tensor& expected,
                                 double rtol = 0);

// How the elements of two tensors lie to each other.
struct Spread {
  // Elements whose values are more than the row before, and up to `ulp_max`, representable values
  // of their type apart. In ascending order, without empty rows.
  struct Row {
    uint64_t ulp_max =
        0;  // 0, 1, 2, 4, 8, ...; the largest number: NaN, or an infinity on one side
    int64_t elements = 0;
  };
  std::vector<Row> ulps;
  double cosine = 1;  // of the angle between the tensors; 1 where both are zero
};
// Of tensors that compare() takes.
REPLAY_EXPORT Spread spread_of(const at::Tensor& ours, const at::Tensor& expected);

// A tensor's worst difference, and where.
struct NamedDifference {
  std::string tensor = {};
  int64_t step = 0;  // from 0
  Difference difference = {};
};

// atol + rtol |b| for every element.
struct Tolerance {
  double atol = 0, rtol = 0;
};

// Where a replayed step leaves what was recorded: the first tensor, and the part of the step.
// In the order in which a step takes them.
enum class StepPart : uint8_t {
  Norm,               // of all gradients
  Clip,               // the factor that it gives all gradients
  Momentum,           // moments, with the gradient in them; L2 decay
  Orthogonalization,  // the direction of a rule that needs whole matrices
  Decay,              // the share of itself that a parameter loses
  Update,             // the learning rate, and the direction of other rules
  Cast,               // from the master to the model's type
};
inline constexpr int kStepParts = 7;
REPLAY_EXPORT std::string_view name(StepPart part);  // "norm", "clip", "momentum", ...

// A part, and what it is for the parameters whose first difference it is. Where there are none,
// for the first parameter of which it is known.
struct PartOfStep {
  StepPart part = StepPart::Norm;
  int64_t tensors = 0;      // parameters that differ from here on
  std::string tensor = {};  // the first of them, in model order
  // Norm, Clip: the norm, the factor. Momentum, Orthogonalization: 0, and how far the recorded
  // tensor is from what the recorded inputs give, relative to it. Decay, Update: the share, the
  // learning rate. Cast: 0, and the number of elements. Fitted to all elements; none where the
  // recorded tensors do not tell.
  std::optional<double> ours = {}, recorded = {};
};

// The first tensor that differs, in model order; of a parameter moments before master before
// weight. One outside its tolerance, if there is one.
struct Divergence {
  int64_t iteration = 0;  // the one behind the last step
  std::string kind, tensor;
  Difference difference;
  Spread spread;
  std::vector<PartOfStep> parts = {};  // all of them, or none
  std::string why_no_parts = {};       // empty: there are parts
  std::optional<StepPart> first = {};  // the part that differs first, in any parameter
  bool is_rounding = false;            // no part differs by more than its rounding
};

}  // namespace optim

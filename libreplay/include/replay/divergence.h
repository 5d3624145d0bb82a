#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <replay/comparison.h>
#include <replay/export.h>

// Where a replayed step leaves what was recorded: the first tensor, and the part of the step.
namespace optim {

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

#pragma once

#include <cstdint>
#include <vector>

#include <optim/layout_export.h>
#include <optim/update_modes.h>

// What a Newton-Schulz iteration is told to do, as values.
namespace optim {

// One step of the iteration: A = X X^T, B = b A + c A A, X = a X + B X.
struct NewtonSchulzStep {
  double a = 0, b = 0, c = 0;
  bool operator==(const NewtonSchulzStep&) const = default;
};

// On which matrices the steps work. An extension of ours: the reference has Standard alone.
enum class NewtonSchulzIteration : uint8_t {
  Standard,  // on X
  // On the Gram matrix R = X X^T where X is at least twice as wide as tall: a step with
  // P = a + b R + c R R is R = P R P, and X is multiplied once, by the product of up to three P;
  // then R is taken from X again. Fewer multiplications, other bits: Medium computes in float16 in
  // the place of bfloat16, whose eight bits the detour does not stand. Errors: docs/optimizer.md.
  // Other matrices as with Standard.
  Gram,
};

struct NewtonSchulzOptions {
  int64_t steps = 5;  // 1 to kNewtonSchulzStepsMax; Cubic5: exactly 5
  NsCoefficients coefficients = NsCoefficients::Quintic;
  std::vector<NewtonSchulzStep> custom = {};  // the rows of Custom; past their end they start again
  // Highest and High: fp32 products. Medium: one cast to bf16, then bf16 products that accumulate
  // in fp32 and round once each, the scaled addend included.
  MatmulPrecision precision = MatmulPrecision::Medium;
  NewtonSchulzIteration iteration = NewtonSchulzIteration::Standard;
  // On a GPU of compute capability 9.0, Medium: symmetric products by a kernel of our own where a
  // model of time prefers it to cuBLASLt (docs/optimizer.md, section 9); false: never. No effect
  // elsewhere.
  bool mirrored_products = true;
};

}  // namespace optim

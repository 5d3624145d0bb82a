// Newton-Schulz on the Gram matrix: all polynomials of one symmetric matrix commute, so that the
// matrix itself is multiplied once for several steps.
#include <span>
#include <utility>

#include "step/loops/tiled_products.h"
#include "step/rules/newton_schulz_iteration.h"

namespace optim {
namespace {

// Steps on one Gram matrix. Each multiplies what rounding did to its smallest eigenvalues by up to
// a^2, and what it is applied with grows by a.
constexpr int64_t kStepsOnGramMost = 3;

// p x + q y, rounded once.
at::Tensor combined(const at::Tensor& x, double p, const at::Tensor& y, double q) {
  return x.to(at::kFloat).mul(p).add_(y.to(at::kFloat).mul(q)).to(x.scalar_type());
}

// b R + c R R: the part of a step's polynomial that is not a multiple of the identity.
at::Tensor polynomial_of(const at::Tensor& gram, const NewtonSchulzStep& step) {
  if (step.c != 0) return add_square(gram, {step.b, step.c});
  return gram.to(at::kFloat).mul(step.b).to(gram.scalar_type());
}

// The product of the steps' polynomials is identity + factor. Multiples of the identity are kept
// apart, where they are exact: in two bytes they would swallow the rest.
at::Tensor apply_steps(const at::Tensor& x, at::Tensor gram,
                       std::span<const NewtonSchulzStep> steps) {
  double identity = 1;
  at::Tensor factor;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double a = steps[i].a;
    const at::Tensor p = polynomial_of(gram, steps[i]);
    factor = i == 0 ? p : add_symmetric(combined(factor, a, p, identity), p, factor, {.beta = 1});
    identity *= a;
    if (i + 1 == steps.size()) break;
    const at::Tensor half = add_symmetric(gram, p, gram, {.beta = a});  // P R
    gram = add_symmetric(half, p, half, {.beta = a});
  }
  return add_product(factor, x, {.beta = identity});
}

}  // namespace

at::Tensor iterate_on_gram(at::Tensor x, const WholeMatrix& whole,
                           const std::vector<NewtonSchulzStep>& steps) {
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t passes = (count + kStepsOnGramMost - 1) / kStepsOnGramMost;
  std::span<const NewtonSchulzStep> left = steps;
  for (int64_t pass = 0; pass < passes; ++pass) {  // the longer ones first
    const size_t length = left.size() / static_cast<size_t>(passes - pass) +
                          (left.size() % static_cast<size_t>(passes - pass) != 0 ? 1 : 0);
    x = apply_steps(x, whole.gram(gram_matrix(x)), left.first(length));
    left = left.subspan(length);
  }
  return x;
}

}  // namespace optim

#include <optim/newton_schulz.h>

#include <ATen/ops/div.h>

#include <ckpt/error.h>
#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "step/loops/grad_stats_kernels.h"
#include "step/loops/tiled_products.h"
#include "step/rules/newton_schulz_iteration.h"

namespace optim {
namespace {

// Tables of emerging_optimizers 0.3.0, rounded as its source states them.
constexpr NewtonSchulzStep kSimple[] = {{3.4445, -4.7750, 2.0315}};
constexpr NewtonSchulzStep kQuintic[] = {{4.0848, -6.8946, 2.9270},
                                         {3.9505, -6.3029, 2.6377},
                                         {3.7418, -5.5913, 2.3037},
                                         {2.8769, -3.1427, 1.2046},
                                         {2.8366, -3.0525, 1.2012}};
constexpr NewtonSchulzStep kPolarExpress[] = {
    {8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184}, {3.9096, -2.8234, 0.5250},
    {3.2856, -2.4153, 0.4853},   {2.2779, -1.6198, 0.3985}, {1.8726, -1.2307, 0.3585},
    {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
constexpr NewtonSchulzStep kCans[] = {{8.4703, -25.1081, 18.6293},
                                      {4.1828, -3.1087, 0.5806},
                                      {3.9619, -2.9541, 0.5630},
                                      {3.2866, -2.4647, 0.5074},
                                      {2.2737, -1.6447, 0.4162}};
constexpr NewtonSchulzStep kAol[] = {{4.0098, -7.0585, 2.4635},
                                     {3.4585, -5.5479, 2.5959},
                                     {2.7573, -3.2939, 1.4254},
                                     {2.7215, -3.0494, 1.3169}};
constexpr NewtonSchulzStep kDeepseekFast = {3.4445, -4.7750, 2.0315};
constexpr NewtonSchulzStep kDeepseekExact = {2.0, -1.5, 0.5};
constexpr NewtonSchulzStep kDeepseekV4[] = {
    kDeepseekFast, kDeepseekFast, kDeepseekFast, kDeepseekFast,  kDeepseekFast,
    kDeepseekFast, kDeepseekFast, kDeepseekFast, kDeepseekExact, kDeepseekExact};
// Without the quadratic product (August 2026): its table has no c.
constexpr NewtonSchulzStep kCubic5[] = {{3.3656576, -3.3420992, 0},
                                        {2.5744352, -1.4957376, 0},
                                        {2.5368962, -1.4312570, 0},
                                        {2.4418906, -1.2764040, 0},
                                        {2.2230472, -0.9630650, 0}};

struct Table {
  std::span<const NewtonSchulzStep> rows;
  bool repeats_last;
};

Table table_of(NsCoefficients type) {
  switch (type) {
    case NsCoefficients::Simple: return {kSimple, false};
    case NsCoefficients::Quintic: return {kQuintic, false};
    case NsCoefficients::PolarExpress: return {kPolarExpress, true};
    case NsCoefficients::Cans: return {kCans, true};
    case NsCoefficients::Aol: return {kAol, false};
    case NsCoefficients::DeepseekV4: return {kDeepseekV4, true};
    case NsCoefficients::Cubic5: return {kCubic5, false};
    case NsCoefficients::Custom: break;
  }
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "there is no table of these Newton-Schulz coefficients");
}

[[noreturn]] void refuse(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "Newton-Schulz: " + problem);
}

void check(const at::Tensor& x) {
  if (x.dim() != 2) refuse("the input has " + std::to_string(x.dim()) + " dimensions, not 2");
  if (x.scalar_type() != at::kFloat) refuse("the input is not float32");
  if (!x.device().is_cpu()) refuse("the input is not on the CPU");
}

void check(const NewtonSchulzOptions& options) {
  if (options.steps < 1 || options.steps > kNewtonSchulzStepsMax) {
    refuse("expected 1 to " + std::to_string(kNewtonSchulzStepsMax) + " steps, found " +
           std::to_string(options.steps));
  }
  if (options.coefficients == NsCoefficients::Cubic5 && options.steps != 5) {
    refuse("the coefficients 'cubic5' require exactly 5 steps");
  }
  const bool is_custom = options.coefficients == NsCoefficients::Custom;
  if (is_custom == options.custom.empty())
    refuse("custom rows and the coefficients 'custom' must be given together");
}

constexpr float kNormMin = 1e-7F;  // a zero gradient stays zero

// x / max(|x|_F, kNormMin). The norm is summed in fp64 in a fixed order, so that it does not depend
// on threads; rounded to fp32 it is at least as good as the reference's fp32 sum.
at::Tensor normalized(const at::Tensor& x, double square_sum) {
  const auto norm = static_cast<float>(std::sqrt(square_sum));
  return at::div(x, std::max(norm, kNormMin));
}

}  // namespace

void check_newton_schulz(const at::Tensor& x, const NewtonSchulzOptions& options) {
  check(x);
  check(options);
}

NewtonSchulzStep newton_schulz_step(NsCoefficients type, int64_t index) {
  if (index < 0) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "negative Newton-Schulz step");
  }
  const Table table = table_of(type);
  const auto count = static_cast<int64_t>(table.rows.size());
  const int64_t row = table.repeats_last ? std::min(index, count - 1) : index % count;
  return table.rows[static_cast<size_t>(row)];
}

std::vector<NewtonSchulzStep> newton_schulz_steps(const NewtonSchulzOptions& options) {
  check(options);
  std::vector<NewtonSchulzStep> steps;
  for (int64_t i = 0; i < options.steps; ++i) {
    steps.push_back(options.coefficients == NsCoefficients::Custom
                        ? options.custom[static_cast<size_t>(i) % options.custom.size()]
                        : newton_schulz_step(options.coefficients, i));
  }
  return steps;
}

at::Tensor newton_schulz(const at::Tensor& input, const NewtonSchulzOptions& options) {
  check_newton_schulz(input, options);
  const bool is_tall = input.size(0) > input.size(1);
  const at::Tensor x = (is_tall ? input.t() : input).contiguous();
  const at::Tensor result = iterate(x,
                                    {.columns = x.size(1),
                                     .square_sum = sum_of_squares(x),
                                     .gram = [](at::Tensor gram) { return gram; }},
                                    options);
  return is_tall ? result.t().contiguous() : result;
}

bool iterates_on_gram(const NewtonSchulzOptions& options, int64_t rows, int64_t columns) {
  const auto [smaller, larger] = std::minmax(rows, columns);
  return options.iteration == NewtonSchulzIteration::Gram && larger / 2 >= smaller;
}

at::Tensor iterate(const at::Tensor& wide, const WholeMatrix& whole,
                   const NewtonSchulzOptions& options) {
  at::Tensor x = normalized(wide, whole.square_sum);
  const bool is_medium = options.precision == MatmulPrecision::Medium;
  const std::vector<NewtonSchulzStep> steps = newton_schulz_steps(options);
  if (whole.columns >= wide.size(0) && iterates_on_gram(options, wide.size(0), whole.columns)) {
    if (is_medium) x = x.to(at::kHalf);
    return iterate_on_gram(std::move(x), whole, steps).to(at::kFloat);
  }
  if (is_medium) x = x.to(at::kBFloat16);
  for (const NewtonSchulzStep& step : steps) {
    const at::Tensor gram = whole.gram(gram_matrix(x));
    // Without a quadratic product the scaled Gram matrix is applied as it is.
    const at::Tensor polynomial = step.c == 0 ? gram : add_square(gram, {step.b, step.c});
    x = add_product(polynomial, x, {step.a, step.c == 0 ? step.b : 1.0});
  }
  return x.to(at::kFloat);
}

}  // namespace optim

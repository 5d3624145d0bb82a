// Newton-Schulz of a whole matrix, of one that tensor-parallel ranks share, and on the Gram matrix:
// all polynomials of one symmetric matrix commute, so that the matrix itself is multiplied once for
// several steps.
#include <optim/newton_schulz.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <ckpt/error.h>
#include <optim/matrix_split.h>
#include <optim/update_rule.h>

#include "step/loops/grad_stats_kernels.h"
#include "step/loops/tiled_products.h"

namespace optim {
namespace {

// A wide matrix, of which this rank may have some columns.
struct WholeMatrix {
  int64_t columns;                             // of all ranks
  double square_sum;                           // of the elements of all ranks
  std::function<at::Tensor(at::Tensor)> gram;  // x x^T of the whole, of this rank's
};

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
// Without the quadratic product (core 0.20-dev): its table has no c.
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

// The steps on the Gram matrix; `x` is normalised, in the type of the products.
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

// The steps on `wide` (contiguous fp32), or on this rank's columns of it. Gives fp32.
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

[[noreturn]] void refuse_mode(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "Newton-Schulz of a part: " + problem);
}

void check_split(const at::Tensor& part, const MatrixSplit& split) {
  if (split.mode == MuonTpMode::Blockwise)
    refuse_mode("blockwise, each part is a matrix of its own");
  if (split.dim != 0 && split.dim != 1)
    refuse_mode("the matrix is cut along neither rows nor columns");
  const auto rank = static_cast<size_t>(split.ranks ? split.ranks->rank() : 0);
  const auto& extents = split.extents;
  if (!split.ranks || rank >= extents.size()) refuse_mode("the ranks are not given");
  if (std::ranges::any_of(extents, [](int64_t extent) { return extent < 1; })) {
    refuse_mode("a rank has no part of the matrix");
  }
  if (part.size(split.dim) != extents[rank]) {
    refuse_mode("it has " + std::to_string(part.size(split.dim)) + " of the " +
                std::to_string(extents[rank]) + " rows or columns of this rank");
  }
}

// The whole matrix, on every rank.
at::Tensor gathered(const at::Tensor& part, const MatrixSplit& split) {
  const int64_t other = part.size(1 - split.dim);
  std::vector<int64_t> counts;
  for (const int64_t extent : split.extents) counts.push_back(extent * other);
  std::vector<at::Tensor> parts = split.ranks->all_gather(part.contiguous(), counts);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const int64_t extent = split.extents[rank];
    parts[rank] =
        split.dim == 0 ? parts[rank].view({extent, other}) : parts[rank].view({other, extent});
  }
  return at::cat(parts, split.dim);
}

// What each rank has, added up in fp32 in the order of ranks and rounded once to its type.
at::Tensor sum_over_ranks(const at::Tensor& mine, MatrixRanks& ranks, size_t rank_count) {
  const std::vector<int64_t> counts(rank_count, mine.numel());
  const std::vector<at::Tensor> all = ranks.all_gather(mine, counts);
  const bool is_double = mine.scalar_type() == at::kDouble;
  const at::ScalarType wide = is_double ? at::kDouble : at::kFloat;
  at::Tensor sum = all[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t rank = 1; rank < all.size(); ++rank) sum.add_(all[rank].to(wide));
  return sum.to(mine.scalar_type()).view(mine.sizes());
}

at::Tensor duplicated(const at::Tensor& part, const NewtonSchulzOptions& options,
                      const MatrixSplit& split) {
  const auto rank = static_cast<size_t>(split.ranks->rank());
  const int64_t begin = std::accumulate(
      split.extents.begin(), split.extents.begin() + static_cast<int64_t>(rank), int64_t{0});
  return newton_schulz(gathered(part, split), options)
      .narrow(split.dim, begin, split.extents[rank])
      .contiguous();
}

at::Tensor distributed(const at::Tensor& part, const NewtonSchulzOptions& options,
                       const MatrixSplit& split) {
  const bool transposes = split.dim == 0;
  const at::Tensor x = (transposes ? part.t() : part).contiguous();
  const size_t count = split.extents.size();
  MatrixRanks& ranks = *split.ranks;
  const at::Tensor squares =
      sum_over_ranks(at::full({1}, sum_of_squares(x), at::kDouble), ranks, count);
  const at::Tensor result =
      iterate(x,
              {.columns = split.whole_extent(),
               .square_sum = *squares.const_data_ptr<double>(),
               .gram = [&](const at::Tensor& gram) { return sum_over_ranks(gram, ranks, count); }},
              options);
  return transposes ? result.t().contiguous() : result;
}

}  // namespace

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
  check(input);
  check(options);
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

int64_t MatrixSplit::whole_extent() const {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0});
}

at::Tensor newton_schulz_tp(const at::Tensor& part, const NewtonSchulzOptions& options,
                            const MatrixSplit& split) {
  check(part);
  check(options);
  check_split(part, split);
  return split.mode == MuonTpMode::Duplicated ? duplicated(part, options, split)
                                              : distributed(part, options, split);
}

}  // namespace optim

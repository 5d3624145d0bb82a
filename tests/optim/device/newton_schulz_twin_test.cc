// The products that a GPU is told to do are those of the CPU, rounding for rounding: on matrices of
// which every sum has one term, so that its order does not matter.
#include <ATen/ops/zeros.h>
#include <optim/newton_schulz.h>

#include <cmath>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/muon_twin.h"

namespace {

using namespace optim;
using kernels::ElementType;

// Squares add up to 16^2: the norm is 1, and bf16 holds every element.
constexpr float kDiagonal[] = {11.0F / 16, 9.0F / 16, 7.0F / 16, 2.0F / 16, 1.0F / 16};

at::Tensor diagonal(int64_t rows, int64_t columns) {
  at::Tensor matrix = at::zeros({rows, columns});
  for (int64_t i = 0; i < 5; ++i) matrix.data_ptr<float>()[i * columns + i] = kDiagonal[i];
  return matrix;
}

// The twin's result for a matrix of norm 1.
std::vector<float> twin_of(const at::Tensor& matrix, const NewtonSchulzOptions& options) {
  const bool is_bf16 = options.precision == MatmulPrecision::Medium;
  const bool on_gram = iterates_on_gram(options, matrix.size(0), matrix.size(1));
  const ElementType two_bytes = on_gram ? ElementType::F16 : ElementType::BF16;
  const ElementType type = is_bf16 ? two_bytes : ElementType::F32;
  const int64_t count = matrix.numel();
  std::vector<float> x(static_cast<size_t>(count)), next(x), gram(25), polynomial(25), factor(25),
      spare(25);
  for (int64_t i = 0; i < count; ++i) {
    const float value = matrix.data_ptr<float>()[i];
    kernels::store_bits(x.data(), i, type, kernels::encode(type, value));
  }
  std::vector<kernels::NewtonSchulzCoefficients> steps;
  for (const NewtonSchulzStep& s : newton_schulz_steps(options)) {
    steps.push_back({static_cast<float>(s.a), static_cast<float>(s.b), static_cast<float>(s.c)});
  }
  const kernels::NewtonSchulzBuffers buffers = {
      x.data(), next.data(), gram.data(), polynomial.data(), nullptr, factor.data(), spare.data()};
  const kernels::NewtonSchulzShape shape = {matrix.size(0), matrix.size(1), 1, type, false, 0, 0,
                                            on_gram};
  kernels::newton_schulz_twin(shape, buffers, steps);
  const int turns = kernels::multiplications_of(shape, static_cast<int>(steps.size()));
  const void* const result = kernels::newton_schulz_result(buffers, turns);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(kernels::decode(type, kernels::stored_bits(result, i, type)));
  }
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(newton_schulz_twin)

BOOST_AUTO_TEST_CASE(coefficients_of_every_kind_round_as_the_cpu_does) {
  for (const NsCoefficients kind :
       {NsCoefficients::Simple, NsCoefficients::Quintic, NsCoefficients::PolarExpress,
        NsCoefficients::Cans, NsCoefficients::Aol, NsCoefficients::DeepseekV4,
        NsCoefficients::Cubic5, NsCoefficients::Custom}) {
    NewtonSchulzOptions options = {.coefficients = kind};
    if (kind == NsCoefficients::Custom) options.custom = {{2, -1.5, 0.5}, {1.5, -0.5, 0}};
    for (const auto precision : {MatmulPrecision::Medium, MatmulPrecision::Highest}) {
      options.precision = precision;
      for (const at::Tensor& matrix :
           {diagonal(5, 6), diagonal(6, 5), diagonal(5, 5), diagonal(5, 11), diagonal(10, 5)}) {
        options.iteration =
            matrix.numel() >= 50 ? NewtonSchulzIteration::Gram : NewtonSchulzIteration::Standard;
        // On Gram matrices cans makes more of the last bits of fp32.
        const bool is_medium = precision == MatmulPrecision::Medium;
        const bool is_standard = options.iteration == NewtonSchulzIteration::Standard;
        const float tolerance = is_medium ? 0 : is_standard ? 1e-5F : 1e-4F;
        const at::Tensor expected = newton_schulz(matrix, options);
        const std::vector<float> found = twin_of(matrix, options);
        for (size_t i = 0; i < found.size(); ++i) {
          const float wanted = expected.data_ptr<float>()[i];
          BOOST_TEST(std::abs(found[i] - wanted) <= tolerance,
                     name(kind) << ": " << found[i] << " instead of " << wanted);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

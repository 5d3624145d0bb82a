#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <optim/newton_schulz.h>

#include <cmath>

#include "optim/expect_error.h"
#include "optim/step/tensors.h"

BOOST_AUTO_TEST_SUITE(newton_schulz)

using optim::NsCoefficients;

BOOST_AUTO_TEST_CASE(a_table_past_its_end_repeats_its_last_row_or_starts_again) {
  struct Row {
    NsCoefficients type;
    int64_t index;
    optim::NewtonSchulzStep step;
  };
  const Row rows[] = {
      {NsCoefficients::Simple, 0, {3.4445, -4.7750, 2.0315}},
      {NsCoefficients::Simple, 9, {3.4445, -4.7750, 2.0315}},
      {NsCoefficients::Quintic, 4, {2.8366, -3.0525, 1.2012}},
      {NsCoefficients::Quintic, 5, {4.0848, -6.8946, 2.9270}},  // starts again
      {NsCoefficients::Aol, 4, {4.0098, -7.0585, 2.4635}},      // starts again
      {NsCoefficients::PolarExpress, 0, {8.2051, -22.9019, 16.4607}},
      {NsCoefficients::PolarExpress, 20, {1.8750, -1.2500, 0.3750}},  // repeats
      {NsCoefficients::Cans, 5, {2.2737, -1.6447, 0.4162}},           // repeats
      {NsCoefficients::DeepseekV4, 7, {3.4445, -4.7750, 2.0315}},
      {NsCoefficients::DeepseekV4, 8, {2.0, -1.5, 0.5}},
      {NsCoefficients::DeepseekV4, 11, {2.0, -1.5, 0.5}},  // repeats
      {NsCoefficients::Cubic5, 4, {2.2230472, -0.9630650, 0}},
  };
  for (const Row& row : rows) {
    BOOST_TEST_CONTEXT(optim::name(row.type) << " step " << row.index) {
      BOOST_TEST((optim::newton_schulz_step(row.type, row.index) == row.step));
    }
  }
}

// The definition in double precision, without LibTorch: X = a X + b A X + c A A X with A = X X^T.
using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

Matrix reference(const at::Tensor& tensor, const optim::NewtonSchulzOptions& options) {
  const auto rows = static_cast<size_t>(tensor.size(0));
  const auto columns = static_cast<size_t>(tensor.size(1));
  const std::vector<float> values = values_of(tensor);
  Matrix x(rows, std::vector<double>(columns));
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  for (size_t i = 0; i < values.size(); ++i) {
    x[i / columns][i % columns] = values[i] / std::sqrt(squares);
  }
  const bool is_tall = rows > columns;
  if (is_tall) x = transposed(x);
  for (int64_t k = 0; k < options.steps; ++k) {
    const optim::NewtonSchulzStep step = optim::newton_schulz_step(options.coefficients, k);
    const Matrix gram = product(x, transposed(x));
    const Matrix gram_x = product(gram, x);
    const Matrix gram_gram_x = product(gram, gram_x);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[0].size(); ++j) {
        x[i][j] = step.a * x[i][j] + step.b * gram_x[i][j] + step.c * gram_gram_x[i][j];
      }
    }
  }
  return is_tall ? transposed(x) : x;
}

BOOST_AUTO_TEST_CASE(fp32_follows_the_definition_in_double_precision) {
  for (const NsCoefficients type : {NsCoefficients::Simple, NsCoefficients::Quintic,
                                    NsCoefficients::PolarExpress, NsCoefficients::DeepseekV4}) {
    for (const auto& [rows, columns] : {std::pair{6, 17}, {17, 6}, {9, 9}, {1, 5}, {5, 1}}) {
      const at::Tensor x = random_tensor({rows, columns}, 3);
      const optim::NewtonSchulzOptions options = {
          .steps = 5, .coefficients = type, .precision = optim::MatmulPrecision::Highest};
      const std::vector<float> ours = values_of(optim::newton_schulz(x, options));
      const Matrix expected = reference(x, options);
      double worst = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        const double theirs = expected[i / columns][i % columns];
        worst = std::max(worst, std::abs(ours[i] - theirs));
      }
      BOOST_TEST(worst < 3e-5, optim::name(type) << " " << rows << "x" << columns << ": " << worst);
    }
  }
}

BOOST_AUTO_TEST_CASE(bf16_stays_near_fp32) {
  const at::Tensor x = random_tensor({16, 40}, 5);
  const at::Tensor exact = optim::newton_schulz(x, {.precision = optim::MatmulPrecision::Highest});
  const at::Tensor rounded = optim::newton_schulz(x, {.precision = optim::MatmulPrecision::Medium});
  BOOST_TEST(rounded.scalar_type() == at::kFloat);
  BOOST_TEST(largest_difference(exact, rounded) < 0.03);
  BOOST_TEST(largest_difference(exact, rounded) > 1e-5);  // it did round
}

BOOST_AUTO_TEST_CASE(a_tall_matrix_is_the_transpose_of_its_wide_twin) {
  const at::Tensor wide = random_tensor({7, 20}, 11);
  for (const auto precision : {optim::MatmulPrecision::Highest, optim::MatmulPrecision::Medium}) {
    const optim::NewtonSchulzOptions options = {.precision = precision};
    const at::Tensor tall = optim::newton_schulz(wide.t().contiguous(), options);
    BOOST_TEST(same_bits(tall.t(), optim::newton_schulz(wide, options)));
  }
}

BOOST_AUTO_TEST_CASE(a_view_gives_the_bits_of_its_copy) {
  const at::Tensor big = random_tensor({20, 30}, 13);
  const at::Tensor view = big.narrow(1, 3, 11);
  BOOST_TEST(same_bits(optim::newton_schulz(view), optim::newton_schulz(view.contiguous())));
}

BOOST_AUTO_TEST_CASE(rows_of_ones_own_are_used_in_turn) {
  const at::Tensor x = random_tensor({9, 14}, 3);
  const optim::NewtonSchulzOptions simple = {.coefficients = NsCoefficients::Simple};
  const optim::NewtonSchulzOptions custom = {.coefficients = NsCoefficients::Custom,
                                             .custom = {{3.4445, -4.7750, 2.0315}}};
  BOOST_TEST(same_bits(optim::newton_schulz(x, simple), optim::newton_schulz(x, custom)));
  const auto invalid = ckpt::ErrorCode::InvalidArgument;
  expect_error(invalid, "",
               [&] { optim::newton_schulz(x, {.coefficients = NsCoefficients::Custom}); });
  expect_error(invalid, "", [&] { optim::newton_schulz(x, {.custom = {{1, 2, 3}}}); });
  expect_error(invalid, "", [&] {
    optim::newton_schulz(x, {.steps = 4, .coefficients = NsCoefficients::Cubic5});
  });
}

double values_norm(const at::Tensor& tensor) {
  double squares = 0;
  for (const float value : values_of(tensor)) squares += double{value} * value;
  return std::sqrt(squares);
}

// Several tiles, the last ones smaller: as the products of whole matrices.
BOOST_AUTO_TEST_CASE(tiles_make_no_difference_but_roundings) {
  for (const auto& shape : {std::vector<int64_t>{700, 1100}, std::vector<int64_t>{1030, 520}}) {
    const at::Tensor x = random_tensor(shape, 17);
    const bool is_tall = shape[0] > shape[1];
    at::Tensor whole = (is_tall ? x.t() : x).to(at::kDouble);
    whole = whole.div(whole.norm());
    for (int64_t i = 0; i < 5; ++i) {
      const auto [a, b, c] = optim::newton_schulz_step(NsCoefficients::Quintic, i);
      const at::Tensor gram = whole.mm(whole.t());
      whole = whole.mul(a).add(gram.mul(b).add(gram.mm(gram), c).mm(whole));
    }
    const at::Tensor expected = (is_tall ? whole.t() : whole).to(at::kFloat);
    const at::Tensor exact =
        optim::newton_schulz(x, {.precision = optim::MatmulPrecision::Highest});
    BOOST_TEST(largest_difference(exact, expected) < 1e-6);
    const double rounded = values_norm(optim::newton_schulz(x).sub(expected));
    BOOST_TEST(rounded <= 3e-2 * values_norm(expected));
  }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads) {
  struct Threads {
    int before = at::get_num_threads();
    explicit Threads(int count) { at::set_num_threads(count); }
    ~Threads() { at::set_num_threads(before); }
  };
  for (const auto& shape : {std::vector<int64_t>{64, 48}, std::vector<int64_t>{700, 310},
                            std::vector<int64_t>{513, 1030}, std::vector<int64_t>{1024, 1024}}) {
    const at::Tensor x = random_tensor(shape, 23);
    for (const auto precision : {optim::MatmulPrecision::Highest, optim::MatmulPrecision::Medium}) {
      const auto with_threads = [&](int count) {
        const Threads threads(count);
        return optim::newton_schulz(x, {.precision = precision});
      };
      const at::Tensor expected = with_threads(1);
      for (const int count : {2, 3, 8}) {
        BOOST_TEST(same_bits(with_threads(count), expected),
                   shape[0] << " x " << shape[1] << ", " << count << " threads");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_zero_matrix_stays_zero) {
  const at::Tensor zero = at::zeros({4, 6}, at::kFloat);
  BOOST_TEST(same_bits(optim::newton_schulz(zero), zero));
}

BOOST_AUTO_TEST_CASE(what_is_no_fp32_matrix_is_refused) {
  const auto invalid = ckpt::ErrorCode::InvalidArgument;
  expect_error(invalid, "", [] { optim::newton_schulz(random_tensor({8}, 1)); });
  expect_error(invalid, "", [] { optim::newton_schulz(random_tensor({2, 3, 4}, 1)); });
  expect_error(invalid, "", [] { optim::newton_schulz(random_tensor({2, 3}, 1).to(at::kDouble)); });
  for (const int64_t steps : {int64_t{0}, optim::kNewtonSchulzStepsMax + 1}) {
    expect_error(invalid, "", [&] {
      optim::newton_schulz(random_tensor({2, 3}, 1), {.steps = steps});
    });
  }
  expect_error(invalid, "", [] { optim::newton_schulz_step(NsCoefficients::Aol, -1); });
}

BOOST_AUTO_TEST_SUITE_END()

// Newton-Schulz on the Gram matrix: beside the standard iteration, both against double precision.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <optim/matrix_split.h>
#include <optim/newton_schulz.h>
#include <optim/update_rule.h>

#include <cmath>

#include "optim/step/parallel_runs.h"

namespace {

using optim::MatmulPrecision;
using optim::NewtonSchulzIteration;
using optim::NewtonSchulzOptions;
using optim::NsCoefficients;

NewtonSchulzOptions on_gram(NewtonSchulzOptions options) {
  options.iteration = NewtonSchulzIteration::Gram;
  return options;
}

// The steps in double, of a wide matrix.
at::Tensor in_double(const at::Tensor& matrix, const NewtonSchulzOptions& options) {
  at::Tensor x = matrix.to(at::kDouble);
  x = x.div(x.norm());
  for (const optim::NewtonSchulzStep& step : optim::newton_schulz_steps(options)) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, step.b, step.c), x, step.a, 1);
  }
  return x;
}

double error_of(const at::Tensor& found, const at::Tensor& exact) {
  return found.to(at::kDouble).sub(exact).norm().item<double>() / exact.norm().item<double>();
}

struct Spectrum {
  const char* name;
  std::function<double(double)> value;  // of a singular value's place, from 0 to 1
};

// From random normals to what no iteration of five steps brings up.
const Spectrum kSpectra[] = {
    {"equal", [](double) { return 1.0; }},
    {"to 1e-2", [](double at) { return std::pow(10, -2 * at); }},
    {"to 1e-4", [](double at) { return std::pow(10, -4 * at); }},
    {"to 1e-8", [](double at) { return std::pow(10, -8 * at); }},
    {"a few above the rest", [](double at) { return at < 0.02 ? 1.0 : 1e-3; }},
    {"of a low rank", [](double at) { return at < 0.06 ? 1.0 : 0.0; }},
};

at::Tensor with_spectrum(int64_t rows, int64_t columns, const Spectrum& spectrum) {
  const auto basis = [&](int64_t size, uint64_t seed) {
    return std::get<0>(at::linalg_qr(random_tensor({size, rows}, seed).to(at::kDouble)));
  };
  at::Tensor left = basis(rows, 11);
  for (int64_t i = 0; i < rows; ++i) {
    const double at = static_cast<double>(i) / static_cast<double>(rows);
    left.select(1, i).mul_(spectrum.value(at));
  }
  return at::mm(left, basis(columns, 12).t()).to(at::kFloat);
}

struct Worst {
  double ratio = 0, error = 0, standard = 0;
};

// The worst error by the standard iteration's own, over coefficients.
Worst worst_of(const at::Tensor& matrix, MatmulPrecision precision) {
  Worst worst;
  for (const NsCoefficients type :
       {NsCoefficients::Simple, NsCoefficients::Quintic, NsCoefficients::PolarExpress,
        NsCoefficients::Cans, NsCoefficients::Aol, NsCoefficients::Cubic5}) {
    const NewtonSchulzOptions options = {.coefficients = type, .precision = precision};
    const at::Tensor exact = in_double(matrix, options);
    const double standard = error_of(optim::newton_schulz(matrix, options), exact);
    const double ours = error_of(optim::newton_schulz(matrix, on_gram(options)), exact);
    BOOST_TEST_MESSAGE(optim::name(type) << ": " << ours << ", standard " << standard);
    if (ours / standard > worst.ratio) worst = {ours / standard, ours, standard};
  }
  return worst;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gram_newton_schulz)

// float16 has three more bits than bfloat16, which pay for the detour. Where all singular values
// are equal, each step has one error for all of them, which is by chance small or large.
BOOST_FIXTURE_TEST_CASE(medium_is_as_near_to_double_as_the_standard_iteration, OneThread) {
  const auto expect = [](const at::Tensor& matrix, const char* name, double bound) {
    BOOST_TEST_MESSAGE(name << " " << matrix.size(0) << "x" << matrix.size(1));
    const Worst worst = worst_of(matrix, MatmulPrecision::Medium);
    BOOST_TEST(worst.ratio <= bound, name << " " << matrix.size(0) << "x" << matrix.size(1) << ": "
                                          << worst.error << " instead of " << worst.standard);
  };
  for (const auto& [rows, columns] : {std::pair{64, 128}, {48, 200}, {128, 1024}}) {
    expect(random_tensor({rows, columns}, 5), "uniform", 1.2);
    for (const Spectrum& spectrum : kSpectra) {
      const bool is_equal = &spectrum == &kSpectra[0];
      expect(with_spectrum(rows, columns, spectrum), spectrum.name, is_equal ? 2 : 1.2);
    }
  }
}

// fp32 has no bits to give away: the detour's own errors show, far below bfloat16's.
BOOST_FIXTURE_TEST_CASE(highest_is_within_ten_thousandths_of_double, OneThread) {
  for (const Spectrum& spectrum : kSpectra) {
    BOOST_TEST_MESSAGE(spectrum.name);
    const Worst worst = worst_of(with_spectrum(64, 192, spectrum), MatmulPrecision::Highest);
    BOOST_TEST(worst.error <= 1e-4, spectrum.name << ": " << worst.error);
  }
}

BOOST_AUTO_TEST_CASE(any_number_of_steps_is_cut_into_passes) {
  const at::Tensor matrix = random_tensor({24, 60}, 7);
  for (int64_t steps = 1; steps <= 10; ++steps) {
    const NewtonSchulzOptions options = {.steps = steps,
                                         .coefficients = NsCoefficients::DeepseekV4,
                                         .precision = MatmulPrecision::Highest};
    const double error =
        error_of(optim::newton_schulz(matrix, on_gram(options)), in_double(matrix, options));
    BOOST_TEST(error <= 5e-5, steps << " steps: " << error);
  }
}

BOOST_AUTO_TEST_CASE(matrices_that_are_not_twice_as_long_take_the_standard_iteration) {
  for (const auto& [rows, columns] : {std::pair{20, 39}, {39, 20}, {9, 9}, {1, 1}}) {
    const at::Tensor matrix = random_tensor({rows, columns}, 9);
    BOOST_TEST(!optim::iterates_on_gram(on_gram({}), rows, columns));
    BOOST_TEST(same_bits(optim::newton_schulz(matrix, on_gram({})), optim::newton_schulz(matrix)));
  }
  for (const auto& [rows, columns] : {std::pair{20, 40}, {40, 20}, {1, 2}, {3, 8}}) {
    BOOST_TEST(optim::iterates_on_gram(on_gram({}), rows, columns));
    BOOST_TEST(!optim::iterates_on_gram({}, rows, columns));
  }
}

BOOST_AUTO_TEST_CASE(tall_matrices_views_and_zeros_are_as_ever) {
  const at::Tensor wide = random_tensor({20, 50}, 11);
  const at::Tensor result = optim::newton_schulz(wide, on_gram({}));
  BOOST_TEST(result.scalar_type() == at::kFloat);
  BOOST_TEST(same_bits(optim::newton_schulz(wide.t().contiguous(), on_gram({})).t(), result));
  BOOST_TEST(same_bits(optim::newton_schulz(wide.t(), on_gram({})).t(), result));
  const at::Tensor zeros = at::zeros({4, 9});
  BOOST_TEST(same_bits(optim::newton_schulz(zeros, on_gram({})), zeros));
}

// More than one tile of each product.
BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_threads) {
  const int before = at::get_num_threads();
  const at::Tensor matrix = random_tensor({530, 1100}, 13);
  at::set_num_threads(1);
  const at::Tensor expected = optim::newton_schulz(matrix, on_gram({}));
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    BOOST_TEST(same_bits(optim::newton_schulz(matrix, on_gram({})), expected));
  }
  at::set_num_threads(before);
}

// Every rank has some columns; which iteration is taken the whole matrix decides.
BOOST_FIXTURE_TEST_CASE(ranks_that_share_a_matrix_iterate_on_its_gram_matrix, OneThread) {
  const std::vector<int64_t> extents = {10, 30};
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  const at::Tensor whole = random_tensor({16, 40}, 15);
  const NewtonSchulzOptions options = on_gram({.precision = MatmulPrecision::Highest});
  std::vector<at::Tensor> parts(2);
  run_ranks(2, [&](size_t rank) {
    const at::Tensor part = whole.narrow(1, rank == 0 ? 0 : 10, extents[rank]).contiguous();
    const optim::MatrixSplit split = {optim::MuonTpMode::Distributed, 1, extents,
                                      optim::make_matrix_ranks(groups[rank].dp_cp)};
    parts[rank] = optim::newton_schulz_tp(part, options, split);
  });
  const at::Tensor found = at::cat(parts, 1);
  BOOST_TEST(error_of(found, optim::newton_schulz(whole, options).to(at::kDouble)) <= 1e-5);
}

BOOST_AUTO_TEST_CASE(the_factory_gives_it_to_muons_rules) {
  std::vector<at::Tensor> weights[2];
  int long_ones = 0;
  for (const auto iteration : {NewtonSchulzIteration::Standard, NewtonSchulzIteration::Gram}) {
    optim::MegatronOptimizerOptions options = options_of({}, {});
    options.newton_schulz_iteration = iteration;
    const auto optimizer = make_optimizer_with(small_model(1, 3), {}, options, muon_config());
    optimizer->bind_grads([](const optim::ParamInfo& info) { return gradient_of(info, 0); });
    optimizer->step();
    for (const optim::OptimizedParam* const param : optimizer->get_parameters()) {
      weights[iteration == NewtonSchulzIteration::Gram].push_back(optim::master_of(*param).clone());
    }
    const auto params = optimizer->get_parameters();
    for (size_t i = 0; iteration == NewtonSchulzIteration::Gram && i < params.size(); ++i) {
      const optim::ParamInfo& info = params[i]->model.info;
      const bool is_muons = optim::state_of(*params[i]).contains("momentum_buffer");
      if (is_muons && info.attributes.is_qkv) continue;  // its parts are matrices of their own
      const bool is_long =
          is_muons && optim::iterates_on_gram(on_gram({}), info.shape[0], info.shape[1]);
      long_ones += is_long ? 1 : 0;
      BOOST_TEST(same_bits(weights[0][i], weights[1][i]) == !is_long, info.name);
    }
  }
  BOOST_TEST(long_ones >= 2);
}

BOOST_AUTO_TEST_SUITE_END()

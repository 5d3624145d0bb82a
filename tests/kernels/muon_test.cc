#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <kernels/newton_schulz.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "kernels/muon_twin.h"
#include "kernels/random_slot.h"

namespace {

using namespace kernels;

constexpr ElementType kF32 = ElementType::F32, kBF16 = ElementType::BF16;
const std::vector<NewtonSchulzCoefficients> kQuintic = {{4.0848F, -6.8946F, 2.9270F},
                                                        {3.9505F, -6.3029F, 2.6377F},
                                                        {3.7418F, -5.5913F, 2.3037F},
                                                        {2.8769F, -3.1427F, 1.2046F},
                                                        {2.8366F, -3.0525F, 1.2012F}};

using Matrix = std::vector<double>;  // row-major

Matrix product(const Matrix& a, const Matrix& b, int64_t inner) {
  const auto k = static_cast<size_t>(inner);
  const size_t rows = a.size() / k, columns = b.size() / k;
  Matrix c(rows * columns, 0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t x = 0; x < k; ++x) {
      for (size_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * k + x] * b[x * columns + j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, int64_t columns) {
  const auto width = static_cast<size_t>(columns);
  const size_t rows = a.size() / width;
  Matrix t(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < width; ++j) t[j * rows + i] = a[i * width + j];
  }
  return t;
}

// X = a X + (b A + c A A) X with A = X X^T, as the reference writes it.
Matrix reference_steps(Matrix x, int64_t rows, int64_t columns) {
  const bool is_tall = rows > columns;
  if (is_tall) x = transposed(x, columns);
  const int64_t edge = std::min(rows, columns), length = std::max(rows, columns);
  for (const NewtonSchulzCoefficients& k : kQuintic) {
    const Matrix gram = product(x, transposed(x, length), length);
    Matrix polynomial = product(gram, gram, edge);
    for (size_t i = 0; i < gram.size(); ++i) {
      polynomial[i] = static_cast<double>(k.b) * gram[i] + static_cast<double>(k.c) * polynomial[i];
    }
    const Matrix added = product(polynomial, x, edge);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(k.a) * x[i] + added[i];
  }
  return is_tall ? transposed(x, length) : x;
}

struct ShapeCase {
  const char* name;
  int64_t rows, columns, batch;
  ElementType type;
  double tolerance;  // relative Frobenius difference
};
std::ostream& operator<<(std::ostream& out, const ShapeCase& c) { return out << c.name; }

const ShapeCase kShapeCases[] = {
    {"square", 12, 12, 1, kF32, 1e-5},      {"wide", 7, 20, 1, kF32, 1e-5},
    {"tall", 20, 7, 1, kF32, 1e-5},         {"batch of wide", 5, 9, 3, kF32, 1e-5},
    {"batch of tall", 9, 5, 3, kF32, 1e-5}, {"bf16", 16, 40, 2, kBF16, 3e-2},
    {"tall bf16", 40, 16, 2, kBF16, 3e-2},  {"one row", 1, 5, 1, kF32, 1e-5},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(muon)

BOOST_DATA_TEST_CASE(products_are_newton_schulz_steps, boost::unit_test::data::make(kShapeCases)) {
  const NewtonSchulzShape shape = {sample.rows, sample.columns, sample.batch, sample.type, false};
  const int64_t count = shape.rows * shape.columns;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> x(static_cast<size_t>(4 * count * shape.batch)), next(x.size()),
      gram(x.size() * 4), polynomial(x.size() * 4);
  std::vector<Matrix> expected;
  for (int64_t matrix = 0; matrix < shape.batch; ++matrix) {
    Matrix values(static_cast<size_t>(count));
    double squares = 0;
    for (double& value : values) squares += std::pow(value = normal(random), 2);
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(values[static_cast<size_t>(i)] / std::sqrt(squares));
      store_bits(x.data(), matrix * count + i, shape.type, encode(shape.type, value));
      values[static_cast<size_t>(i)] = decode(shape.type, encode(shape.type, value));
    }
    expected.push_back(reference_steps(values, shape.rows, shape.columns));
  }
  const NewtonSchulzBuffers buffers = {x.data(), next.data(), gram.data(), polynomial.data(),
                                       nullptr};
  newton_schulz_twin(shape, buffers, kQuintic);
  const void* result = newton_schulz_result(buffers, static_cast<int>(kQuintic.size()));
  for (int64_t matrix = 0; matrix < shape.batch; ++matrix) {
    double difference = 0, total = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double wanted = expected[static_cast<size_t>(matrix)][static_cast<size_t>(i)];
      const double found = decode(shape.type, stored_bits(result, matrix * count + i, shape.type));
      difference += std::pow(found - wanted, 2);
      total += wanted * wanted;
    }
    BOOST_TEST(std::sqrt(difference / total) < sample.tolerance);
  }
}

// Sums have the same order in both, so that not a bit may differ.
BOOST_DATA_TEST_CASE(symmetric_products_in_blocks_equal_whole_ones,
                     boost::unit_test::data::make({"wide", "tall", "square"})) {
  const std::string name = sample;
  NewtonSchulzShape shape = {70, 70, 2, kBF16, false};
  if (name == "wide") shape.columns = 90;
  if (name == "tall") shape.rows = 90;
  const auto count = static_cast<size_t>(shape.rows * shape.columns * shape.batch);
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 0.01F);
  std::vector<uint16_t> start(count);
  for (uint16_t& value : start) value = static_cast<uint16_t>(encode(kBF16, normal(random)));
  std::vector<std::vector<uint16_t>> results;
  for (const int64_t block : {0, 32, 64}) {
    shape.gram_block = shape.polynomial_block = block;
    std::vector<uint16_t> x = start, next(count), gram(70 * 70 * 2, 0x7FC0),
                          polynomial(70 * 70 * 2, 0x7FC0);  // NaN: all is written before it is read
    newton_schulz_twin(shape, {x.data(), next.data(), gram.data(), polynomial.data(), nullptr},
                       {kQuintic[0], kQuintic[1]});
    results.push_back(x);
  }
  BOOST_TEST((results[0] != start));
  BOOST_TEST((results[1] == results[0]));
  BOOST_TEST((results[2] == results[0]));
}

BOOST_AUTO_TEST_CASE(parts_of_a_fused_weight_cover_it_once) {
  MuonMatrix part = {};
  part.columns = 3;
  part.group_rows = 7;
  std::set<int64_t> seen;
  uint32_t first_row = 0;
  for (const uint32_t rows : {4U, 2U, 1U}) {  // query, key, value; two query groups
    part.rows = 2 * rows;
    part.part_rows = rows;
    part.first_row = first_row;
    for (int64_t i = 0; i < count_of(part); ++i) seen.insert(place_in_weight(part, i));
    first_row += rows;
  }
  BOOST_TEST(seen.size() == 2U * 7 * 3);
  BOOST_TEST(*seen.rbegin() == 2 * 7 * 3 - 1);
  BOOST_TEST(place_in_weight(part, 3) == (7 + 6) * 3);  // value row of the second group
}

BOOST_AUTO_TEST_CASE(prepare_and_finish_follow_muon_in_double) {
  for (const bool nesterov : {false, true}) {
    const MuonTypes types = {ElementType::BF16, kF32, kF32, ElementType::BF16, kF32};
    const TensorTypes stored = {
        types.grad, types.main, {types.momentum, ElementType::None}, types.model};
    SlotMemory memory = random_slot(stored, 60, 6);
    const SlotMemory before = memory;
    std::vector<float> iterate(60), update(60, 0.5F);
    MuonMatrix m = {};
    const TensorSlot slot = memory.slot(stored);
    m.grad = slot.grad;
    m.main = slot.main;
    m.momentum = slot.state[0];
    m.model = slot.model;
    m.iterate = iterate.data();
    m.update = update.data();
    m.rows = 6;
    m.columns = 10;
    m.part_rows = m.group_rows = 6;
    m.scale = 2;
    m.extra_scale = 0.2F;
    GroupSettings settings = {};
    settings.lr = 0.1;
    settings.weight_decay = 0.01;
    settings.beta1 = 0.95;
    settings.rule = RuleKind::Muon;
    const MuonTwin twin = {types, {make_scalars(settings), 1, 0.5F, nesterov}};
    twin.prepare(m);
    twin.finish(m);
    double squares = 0;
    Matrix directions;
    for (int64_t i = 0; i < 60; ++i) {
      const double grad =
          0.5 *
          decode(types.grad, stored_bits(before.tensors[SlotMemory::Grad].data(), i, types.grad));
      const double old_momentum =
          decode(kF32, stored_bits(before.tensors[SlotMemory::State0].data(), i, kF32));
      const double old_param =
          decode(kF32, stored_bits(before.tensors[SlotMemory::Main].data(), i, kF32));
      const double momentum = 0.95 * old_momentum + 0.05 * grad;
      directions.push_back(nesterov ? 0.05 * grad + 0.95 * momentum : momentum);
      squares += directions.back() * directions.back();
      BOOST_TEST(std::abs(decode(kF32, stored_bits(m.momentum, i, kF32)) - momentum) < 1e-7);
      const double param = old_param * (1 - 0.1 * 0.01) - 0.1 * 0.5 * 2 * 0.2;
      BOOST_TEST(std::abs(decode(kF32, stored_bits(m.main, i, kF32)) - param) < 1e-6);
    }
    for (size_t i = 0; i < 60; ++i) {
      BOOST_TEST(std::abs(iterate[i] - directions[i] / std::sqrt(squares)) < 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(zero_gradients_stay_zero) {
  const MuonTypes types = {kF32, kF32, kF32, ElementType::None, kBF16};
  std::vector<float> zeros(12), param(12, 1), momentum(12);
  std::vector<uint16_t> iterate(12, 1);
  MuonMatrix m = {};
  m.grad = zeros.data();
  m.main = param.data();
  m.momentum = momentum.data();
  m.iterate = iterate.data();
  m.rows = 3;
  m.columns = 4;
  m.part_rows = m.group_rows = 3;
  MuonTwin{types, {make_scalars({}), 1, 1, false}}.prepare(m);
  BOOST_TEST((iterate == std::vector<uint16_t>(12, 0)));
}

BOOST_AUTO_TEST_CASE(senseless_requests_are_refused) {
  MuonRequest request = {};
  BOOST_TEST(muon_prepare(request, nullptr) == cudaErrorInvalidValue);
  BOOST_TEST(muon_finish(request, nullptr) == cudaErrorInvalidValue);
  NewtonSchulz plan;
  BOOST_TEST(plan.prepare(nullptr, {0, 4, 1, kF32, false}) == cudaErrorInvalidValue);
  BOOST_TEST(plan.prepare(nullptr, {4, 4, 1, ElementType::F16, false}) == cudaErrorInvalidValue);
  BOOST_TEST(plan.prepare(nullptr, {4, 4, 1, kF32, false, 33}) == cudaErrorInvalidValue);
  BOOST_TEST(plan.run({}, kQuintic.data(), 5, nullptr) == cudaErrorInvalidValue);
  for (const MirrorRequest& refused : {MirrorRequest{nullptr, kF32, 0, 1, 32},
                                       {nullptr, kF32, 64, 0, 32},
                                       {nullptr, kF32, 64, 1, 33},
                                       {nullptr, ElementType::F8E4M3, 64, 1, 32}}) {
    BOOST_TEST(mirror_blocks(refused, nullptr) == cudaErrorInvalidValue);
  }
}

BOOST_AUTO_TEST_SUITE_END()

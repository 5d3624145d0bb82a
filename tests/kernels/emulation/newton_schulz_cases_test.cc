// The queue of Newton-Schulz's products and what it adds up between them, compiled for the CPU,
// against their twins: bit for bit.
#include <kernels/newton_schulz.h>
#include <kernels/symmetric.h>

#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/emulation/placed_tensors.h"
#include "kernels/muon_twin.h"

namespace {

using namespace kernels;

constexpr ElementType kF32 = ElementType::F32, kBF16 = ElementType::BF16, kF16 = ElementType::F16;

struct Products {
  NewtonSchulzShape shape;
  std::vector<NewtonSchulzCoefficients> coefficients;
};

// Memory of a batch as the device asks for it: at multiples of 256 bytes.
struct Batch {
  explicit Batch(size_t bytes) : memory(bytes + 256) {}
  unsigned char* data() {
    return memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  }
  std::vector<unsigned char> memory;
};

// As Newton-Schulz begins: with a norm of about 1, where fp16 would overflow otherwise.
void normalize_elements(const NewtonSchulzShape& s, std::vector<unsigned char>& elements) {
  const auto norm = 0.1F * std::sqrt(static_cast<float>(s.rows * s.columns));
  for (int64_t i = 0; i < s.rows * s.columns * s.batch; ++i) {
    const float value = decode(s.type, stored_bits(elements.data(), i, s.type));
    store_bits(elements.data(), i, s.type, encode(s.type, value / norm));
  }
}

// How many products the queue takes; 0 where its result differs from the twin's.
int products_of(const Products& p, std::mt19937& random) {
  const NewtonSchulzShape& s = p.shape;
  const int64_t edge = std::min(s.rows, s.columns);
  std::vector<unsigned char> start = random_elements(s.type, s.rows * s.columns * s.batch, random);
  if (s.on_gram) normalize_elements(s, start);
  const auto square = static_cast<size_t>(edge * edge * s.batch * bytes_of(s.type));
  std::vector<const void*> results;
  Batch x(start.size()), next(start.size()), gram(square), polynomial(square), workspace(1);
  Batch twin_x(start.size()), twin_next(start.size()), twin_gram(square), twin_polynomial(square);
  Batch factor(square), spare(square), twin_factor(square), twin_spare(square);
  std::copy(start.begin(), start.end(), x.data());
  std::copy(start.begin(), start.end(), twin_x.data());
  const NewtonSchulzBuffers buffers = {x.data(),          next.data(),      gram.data(),
                                       polynomial.data(), workspace.data(), factor.data(),
                                       spare.data()};
  const NewtonSchulzBuffers twin = {twin_x.data(),          twin_next.data(), twin_gram.data(),
                                    twin_polynomial.data(), nullptr,          twin_factor.data(),
                                    twin_spare.data()};
  const auto steps = static_cast<int>(p.coefficients.size());
  const int turns = multiplications_of(s, steps);
  const int before = emulation::products_done();
  draw_order(random);
  NewtonSchulz plan;
  const auto handle = reinterpret_cast<cublasLtHandle_t>(&plan);
  if (plan.prepare(handle, s) != cudaSuccess || plan.bind(buffers) != cudaSuccess) return 0;
  if (plan.run(buffers, p.coefficients.data(), steps, nullptr) != cudaSuccess) return 0;
  newton_schulz_twin(s, twin, p.coefficients);
  const auto count = s.rows * s.columns * s.batch;
  const bool are_same =
      same_elements(s.type, static_cast<unsigned char*>(newton_schulz_result(buffers, turns)),
                    static_cast<unsigned char*>(newton_schulz_result(twin, turns)), count);
  return are_same ? emulation::products_done() - before : 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(muon_on_the_cpu)

BOOST_AUTO_TEST_CASE(newton_schulz_of_any_shape_equals_the_twin) {
  std::mt19937 random(5);
  const std::vector<NewtonSchulzCoefficients> steps = {
      {4.0848F, -6.8946F, 2.9270F}, {3.3656576F, -3.3420992F, 0}, {2.8366F, -3.0525F, 1.2012F}};
  for (const ElementType type : {kF32, kBF16}) {
    for (const auto& [rows, columns] :
         {std::pair{1, 1}, {1, 5}, {5, 1}, {7, 20}, {20, 7}, {34, 40}, {40, 34}, {64, 64}}) {
      for (const int64_t block : {0, 32}) {
        const NewtonSchulzShape shape = {rows, columns, 2, type, false, block, block};
        BOOST_TEST(products_of({shape, steps}, random) > 0, rows << " x " << columns);
      }
    }
  }
}

// A cubic step squares nothing: two products, of which the first is in blocks.
BOOST_AUTO_TEST_CASE(cubic_steps_take_two_products) {
  std::mt19937 random(6);
  const std::vector<NewtonSchulzCoefficients> cubic = {{3, -2, 0}}, quintic = {{3, -2, 1}};
  for (const ElementType type : {kF32, kBF16}) {
    const NewtonSchulzShape whole = {40, 70, 1, type, false, 0, 0},
                            parts = {40, 70, 1, type, false, 32, 32},
                            gram = {40, 70, 1, type, false, 32, 0};
    BOOST_TEST(products_of({whole, cubic}, random) == 2);
    BOOST_TEST(products_of({whole, quintic}, random) == 3);
    BOOST_TEST(products_of({parts, cubic}, random) == 3 + 1);
    BOOST_TEST(products_of({parts, quintic}, random) == 3 + 3 + 1);
    BOOST_TEST(products_of({gram, quintic}, random) == 3 + 1 + 1);
  }
}

BOOST_AUTO_TEST_CASE(sums_of_any_count_equal_the_twin) {
  std::mt19937 random(7);
  for (const ElementType type : {kF32, kF16}) {
    for (const int64_t count : {0, 1, 3, 4, 7, 8, 9, 1023, 2048, 2049, 5003}) {
      const PlacedTensor x(random_elements(type, count, random), 0);
      const PlacedTensor y(random_elements(type, count, random), 0);
      std::vector<unsigned char> expected = random_elements(type, count, random);
      const PlacedTensor found(expected, 0);
      CombineRequest request = {found.data(), x.data(), y.data(), 1.5F, -3, type, count};
      draw_order(random);
      BOOST_TEST(combine(request, nullptr) == cudaSuccess);
      request.sum = expected.data();
      combine_twin(request);
      BOOST_TEST(std::equal(expected.begin(), expected.end(), found.data()), count);
      BOOST_TEST(found.guards_are_whole());
    }
  }
  float x = 1;
  BOOST_TEST(combine({&x, &x, &x, 1, 1, kBF16, 1}, nullptr) == cudaErrorInvalidValue);
  BOOST_TEST(combine({&x, &x, &x, 1, 1, kF32, -1}, nullptr) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(newton_schulz_on_gram_matrices_equals_the_twin) {
  std::mt19937 random(8);
  const NewtonSchulzCoefficients rows_of_steps[] = {
      {4.0848F, -6.8946F, 2.9270F}, {3.3656576F, -3.3420992F, 0}, {2.8366F, -3.0525F, 1.2012F}};
  for (const ElementType type : {kF32, kF16}) {
    for (const auto& [rows, columns] :
         {std::pair{1, 2}, {2, 1}, {7, 20}, {20, 7}, {34, 80}, {70, 33}}) {
      for (const int64_t block : {0, 32}) {
        for (int steps = 1; steps <= 7; steps += rows > 30 ? 4 : 1) {
          std::vector<NewtonSchulzCoefficients> coefficients;
          for (int i = 0; i < steps; ++i) coefficients.push_back(rows_of_steps[i % 3]);
          const NewtonSchulzShape shape = {rows, columns, 2, type, false, block, block, true};
          BOOST_TEST(products_of({shape, coefficients}, random) > 0,
                     rows << " x " << columns << ", " << steps << " steps");
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_on_a_gram_matrix_take_these_products) {
  std::mt19937 random(9);
  const auto count = [&](int steps) {
    const std::vector<NewtonSchulzCoefficients> k(static_cast<size_t>(steps), {3, -2, 1});
    return products_of({{10, 20, 1, kF16, false, 0, 0, true}, k}, random);
  };
  BOOST_TEST(count(1) == 3);  // as the standard iteration's
  BOOST_TEST(count(2) == 1 + (1 + 2) + (1 + 1) + 1);
  BOOST_TEST(count(3) == 1 + (1 + 2) + (1 + 1 + 2) + (1 + 1) + 1);
  BOOST_TEST(count(5) == count(3) + count(2));
  BOOST_TEST(count(7) == count(3) + 2 * count(2));
  const auto refused = [&](NewtonSchulzShape shape) {
    return NewtonSchulz().prepare(nullptr, shape) == cudaErrorInvalidValue;
  };
  BOOST_TEST(refused({10, 20, 1, kBF16, false, 0, 0, true}));
  BOOST_TEST(refused({10, 19, 1, kF16, false, 0, 0, true}));
  BOOST_TEST(refused({10, 20, 1, kF16, false, 0, 0, false}));
}

// Rows and columns of X contiguous; the iterate in each of its two buffers.
BOOST_AUTO_TEST_CASE(products_by_tiles_equal_the_twin) {
  std::mt19937 random(7);
  const std::vector<NewtonSchulzCoefficients> steps = {
      {4.0848F, -6.8946F, 2.9270F}, {3, -2, 0}, {2.8366F, -3.0525F, 1.2012F}};
  for (const SymmetricBy by : {SymmetricBy::TilesAlone, SymmetricBy::TilesInPairs}) {
    for (const auto& [rows, columns] : {std::pair{136, 200}, {144, 48}, {64, 64}}) {
      NewtonSchulzShape shape = {rows, columns, 2, kBF16, false};
      shape.gram_by = shape.polynomial_by = by;
      BOOST_TEST(products_of({shape, steps}, random) == 3, rows << " x " << columns);
      shape.polynomial_by = SymmetricBy::CublasLt;
      BOOST_TEST(products_of({shape, steps}, random) == 3 + 2, rows << " x " << columns);
    }
  }
}

BOOST_AUTO_TEST_CASE(tiles_take_only_what_was_bound) {
  NewtonSchulzShape shape = {64, 64, 1, kBF16, false};
  shape.gram_by = SymmetricBy::TilesAlone;
  Batch memory(5 * 8192);
  const auto at = [&](int i) { return memory.data() + i * 8192; };
  const NewtonSchulzBuffers buffers = {at(0), at(1), at(2), at(3), at(4)};
  const NewtonSchulzCoefficients step = {1, 1, 1};
  NewtonSchulz plan;
  const auto handle = reinterpret_cast<cublasLtHandle_t>(&plan);
  BOOST_TEST(plan.bind(buffers) == cudaErrorInvalidValue);  // nothing was prepared
  BOOST_TEST(plan.prepare(handle, shape) == cudaSuccess);
  BOOST_TEST(plan.run(buffers, &step, 1, nullptr) == cudaErrorInvalidValue);
  BOOST_TEST(plan.bind(buffers) == cudaSuccess);
  BOOST_TEST(plan.run(buffers, &step, 1, nullptr) == cudaSuccess);
  NewtonSchulzBuffers moved = buffers;
  moved.iterate = buffers.workspace;
  BOOST_TEST(plan.run(moved, &step, 1, nullptr) == cudaErrorInvalidValue);
  for (const ElementType type : {kF32, kBF16}) {
    NewtonSchulzShape refused = {60, 64, 1, type, false};
    if (type == kF32) refused.rows = 64;
    refused.gram_by = SymmetricBy::TilesInPairs;
    BOOST_TEST(plan.prepare(handle, refused) == cudaErrorNotSupported);
  }
}

BOOST_AUTO_TEST_SUITE_END()

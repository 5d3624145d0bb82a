#pragma once

#include <kernels/muon.h>
#include <kernels/newton_schulz_products.h>
#include <kernels/symmetric.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stats_twin.h"

namespace kernels {

// muon_prepare() and muon_finish() of one matrix on the CPU; all pointers lead to host memory.

struct MuonTwin {
  MuonTypes types;
  MuonFactors factors;

  MuonElement element(const MuonMatrix& m, int64_t i) const {
    const int64_t place = place_in_weight(m, i);
    MuonElement e = {};
    e.grad = decode(types.grad, stored_bits(m.grad, place, types.grad));
    e.param = types.main == ElementType::SplitF32
                  ? join({stored_bits(m.main, place, types.main),
                          stored_bits(m.remainder, place, types.main)})
                  : decode(types.main, stored_bits(m.main, place, types.main));
    e.momentum = decode(types.momentum, stored_bits(m.momentum, place, types.momentum));
    return e;
  }

  void prepare(const MuonMatrix& m) const {
    std::array<TensorStats, 32> lanes = {};
    for (int64_t c = 0; c < chunks_of(count_of(m)); ++c) {
      add_stats(lanes[static_cast<size_t>(c % 32)], momentum_chunk(m, c * kChunkElements));
    }
    const auto norm = static_cast<float>(std::sqrt(add_in_tree(lanes).square_sum));
    const float divisor = std::max(norm, kMuonNormMin);
    for (int64_t i = 0; i < count_of(m); ++i) {
      const float value = direction_of(factors, element(m, i)) / divisor;
      store_bits(m.iterate, i, types.iterate, encode(types.iterate, value));
    }
  }

  TensorStats momentum_chunk(const MuonMatrix& m, int64_t begin) const {
    std::vector<ElementSums> threads(kStatsThreads, ElementSums{0, 0});
    const int64_t vector = muon_vector(types.grad, types.momentum);
    for (int64_t i = begin; i < std::min(begin + kChunkElements, count_of(m)); ++i) {
      MuonElement e = element(m, i);
      e.momentum = muon_momentum(factors.scalars, e.momentum, muon_grad(factors, e));
      const uint32_t bits = encode(types.momentum, e.momentum);
      e.momentum = decode(types.momentum, bits);
      store_bits(m.momentum, place_in_weight(m, i), types.momentum, bits);
      add_element(threads[static_cast<size_t>((i - begin) / vector % kStatsThreads)],
                  direction_of(factors, e));
    }
    return add_over_block(threads);
  }

  void finish(const MuonMatrix& m) const {
    for (int64_t i = 0; i < count_of(m); ++i) {
      const int64_t place = place_in_weight(m, i);
      const float update = decode(types.iterate, stored_bits(m.update, i, types.iterate));
      const float param = next_param(factors, m, element(m, i).param, update);
      if (types.main == ElementType::SplitF32) {
        const SplitFloat parts = split(param);
        store_bits(m.main, place, types.main, parts.upper);
        store_bits(m.remainder, place, types.main, parts.lower);
      } else {
        store_bits(m.main, place, types.main, encode(types.main, param));
      }
      if (types.model != ElementType::None && m.model != nullptr) {
        store_bits(m.model, place, types.model, encode(types.model, param));
      }
    }
  }
};

// d = alpha op(a) op(b) + beta c for each matrix of a batch, summed in fp32 in order of k, rounded
// once: what cuBLASLt computes but for the order of its sums.
struct ProductTwin {
  ElementType type;
  float alpha, beta;

  void multiply(const NsProduct& p, const NewtonSchulzBuffers& buffers, int64_t batch) const {
    for (int64_t matrix = 0; matrix < batch; ++matrix) {
      for (int64_t column = 0; column < p.n; ++column) {
        for (int64_t row = 0; row < p.m; ++row) element(p, buffers, matrix, {row, column});
      }
    }
  }

 private:
  struct Place {
    int64_t row, column;
  };

  void element(const NsProduct& p, const NewtonSchulzBuffers& buffers, int64_t matrix,
               Place at) const {
    const auto value = [&](NsOperand operand, int64_t index) {
      return decode(type, stored_bits(buffer_of(buffers, operand), index, type));
    };
    float sum = 0;
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t a = p.transpose_a ? k + at.row * p.a_leading : at.row + k * p.a_leading;
      const int64_t b = p.transpose_b ? at.column + k * p.b_leading : k + at.column * p.b_leading;
      sum += value(p.a, p.a_offset + matrix * p.a_stride + a) *
             value(p.b, p.b_offset + matrix * p.b_stride + b);
    }
    const int64_t d = p.d_offset + matrix * p.d_stride + at.row + at.column * p.d_leading;
    const float added = beta == 0 ? 0 : beta * value(p.c, d);
    store_bits(buffer_of(buffers, p.d), d, type, encode(type, alpha * sum + added));
  }
};

// mirror_blocks() on the CPU.
inline void mirror_twin(const MirrorRequest& r) {
  for (int64_t matrix = 0; matrix < r.batch; ++matrix) {
    const int64_t first = matrix * r.edge * r.edge;
    for (int64_t column = 0; column < r.edge; ++column) {
      for (int64_t row = 0; row < r.edge; ++row) {
        if (!is_mirrored(row, column, r.block)) continue;
        const uint32_t bits = stored_bits(r.matrices, first + row + column * r.edge, r.type);
        store_bits(r.matrices, first + column + row * r.edge, r.type, bits);
      }
    }
  }
}

// Gram or polynomial: a symmetric product, in blocks of this edge where it is not 0.
struct SymmetricTwin {
  const NewtonSchulzShape& shape;
  const NewtonSchulzBuffers& buffers;

  void multiply(const NsProduct& whole, int64_t block, NsScaling by) const {
    const std::vector<NsProduct> blocks = blocks_of(whole, block);
    const ProductTwin twin = {shape.type, by.alpha, by.beta};
    for (const NsProduct& part : blocks) twin.multiply(part, buffers, shape.batch);
    if (blocks.size() == 1) return;
    mirror_twin({buffer_of(buffers, whole.d), shape.type, whole.m, shape.batch, block});
  }
};

// combine() on the CPU.
inline void combine_twin(const CombineRequest& r) {
  const auto value = [&](const void* from, int64_t i) {
    return decode(r.type, stored_bits(from, i, r.type));
  };
  for (int64_t i = 0; i < r.count; ++i) {
    store_bits(r.sum, i, r.type, encode(r.type, r.p * value(r.x, i) + r.q * value(r.y, i)));
  }
}

// One pass of GramNewtonSchulz: the first factor is its own buffer, as it is the polynomial.
inline void gram_pass_twin(const NewtonSchulzShape& shape, NewtonSchulzBuffers buffers,
                           std::span<const NewtonSchulzCoefficients> steps) {
  const NsProducts products = newton_schulz_products(shape);
  const int64_t edge = std::min(shape.rows, shape.columns);
  const int64_t count = edge * edge * shape.batch, block = shape.polynomial_block;
  SymmetricTwin{shape, buffers}.multiply(products.gram, shape.gram_block, {1, 0});
  double identity = 1;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [a, b, c] = steps[i];
    if (c == 0) {
      combine_twin({buffers.polynomial, buffers.gram, buffers.gram, b, 0, shape.type, count});
    } else {
      SymmetricTwin{shape, buffers}.multiply(products.polynomial, block, {c, b});
    }
    if (i > 0) {
      combine_twin({buffers.spare, buffers.factor, buffers.polynomial, a,
                    static_cast<float>(identity), shape.type, count});
      SymmetricTwin{shape, buffers}.multiply(products.factor, block, {1, 1});
      std::swap(buffers.factor, buffers.spare);
    }
    identity *= a;
    if (i + 1 < steps.size()) {
      SymmetricTwin{shape, buffers}.multiply(products.half, block, {1, a});
      SymmetricTwin{shape, buffers}.multiply(products.next_gram, block, {1, a});
    }
    if (i == 0) std::swap(buffers.factor, buffers.polynomial);
  }
  ProductTwin{shape.type, 1, static_cast<float>(identity)}.multiply(products.update, buffers,
                                                                    shape.batch);
}

inline void gram_newton_schulz_twin(const NewtonSchulzShape& shape, NewtonSchulzBuffers buffers,
                                    const std::vector<NewtonSchulzCoefficients>& coefficients) {
  std::span<const NewtonSchulzCoefficients> left = coefficients;
  for (const int length : gram_passes(static_cast<int>(left.size()))) {
    gram_pass_twin(shape, buffers, left.first(static_cast<size_t>(length)));
    left = left.subspan(static_cast<size_t>(length));
    std::swap(buffers.iterate, buffers.next);
  }
}

// NewtonSchulz::run() on the CPU. The result lies in newton_schulz_result().
inline void newton_schulz_twin(const NewtonSchulzShape& shape, NewtonSchulzBuffers buffers,
                               const std::vector<NewtonSchulzCoefficients>& coefficients) {
  if (shape.on_gram) return gram_newton_schulz_twin(shape, buffers, coefficients);
  const NsProducts products = newton_schulz_products(shape);
  for (const NewtonSchulzCoefficients& k : coefficients) {
    const SymmetricTwin symmetric = {shape, buffers};
    symmetric.multiply(products.gram, shape.gram_block, {1, 0});
    const NsStep step = ns_step_of(k);
    if (step.has_polynomial) {
      symmetric.multiply(products.polynomial, shape.polynomial_block, step.polynomial);
    }
    ProductTwin{shape.type, step.update.alpha, step.update.beta}.multiply(
        products.update, buffers_of_update(buffers, step), shape.batch);
    std::swap(buffers.iterate, buffers.next);
  }
}

}  // namespace kernels

#pragma once

#include <cstdint>
#include <vector>

#include <kernels/device_step.h>
#include <kernels/element_type.h>
#include <kernels/symmetric.h>

namespace kernels {

// Who computes a symmetric product: cuBLASLt, or the kernel of mirrored_product.h, with one of its
// two deals of tiles.
enum class SymmetricBy : uint8_t { CublasLt, TilesAlone, TilesInPairs };

// Newton-Schulz orthogonalisation of a batch of matrices of one shape, row-major, one behind the
// other: per step A = X X^T, B = b A + c A A, X = a X + B X; tall matrices multiply from the other
// side (A = X^T X, X = a X + X B), so that nothing is ever transposed. Rounding points are the
// reference's: products accumulate in fp32, and each of the three is rounded once to the type of
// X, its scaled addend included. Without a quadratic product (c is 0) there are two.
//
// With `on_gram` steps work on the Gram matrix instead, and X is multiplied once for each of
// gram_passes(): for matrices for which has_gram_shape(), in F16 where others are BF16.
struct NewtonSchulzShape {
  int64_t rows, columns, batch;
  // Of X and all products: BF16 (precision medium; F16 with on_gram) or F32 (high and highest).
  ElementType type;
  bool tf32;  // F32 products on TF32 tensor cores (precision high)
  // Edges of the blocks in which the symmetric products A and B are computed; 0: in full. Multiples
  // of kMirrorTile.
  int64_t gram_block = 0, polynomial_block = 0;
  bool on_gram = false;
  // May they be computed by another than cuBLASLt, and by whom they are; blocks are cuBLASLt's.
  bool allows_mirrored = false;
  SymmetricBy gram_by = SymmetricBy::CublasLt, polynomial_by = SymmetricBy::CublasLt;
};

inline bool has_gram_shape(int64_t rows, int64_t columns) {
  return rows < columns ? columns / 2 >= rows : rows / 2 >= columns;
}

// The matrices of one step, each a batch.
enum class NsOperand : uint8_t {
  Iterate,
  Gram,
  Polynomial,
  Next,
  Factor,  // this and Spare: on_gram only
  Spare,
};

// d = alpha op(a) op(b) + beta c as BLAS says it, column-major: op(a) is m x k, d is m x n. Strides
// are those between the matrices of a batch, in elements. Operands begin `offset` elements behind
// their buffers; c lies where d does in its own.
struct NsProduct {
  NsOperand a, b, c, d;
  bool transpose_a = false, transpose_b = false;
  int64_t m, n, k;
  int64_t a_leading, b_leading, d_leading;
  int64_t a_stride, b_stride, d_stride;
  int64_t a_offset = 0, b_offset = 0, d_offset = 0;
};

// A step's products, whole. Pure; what the twin multiplies out, too.
struct NsProducts {
  NsProduct gram, polynomial, update;
  // On the Gram matrix, where p is the polynomial, each with an addend:
  // half = p R + a R; R = p half + a half; spare = p factor + spare; update takes the factor.
  NsProduct half = {}, next_gram = {}, factor = {};
};
NsProducts newton_schulz_products(const NewtonSchulzShape& shape);

// The blocks on and below the diagonal of a symmetric product d of m == n; what lies above is
// mirrored. 0: the whole.
std::vector<NsProduct> blocks_of(const NsProduct& whole, int64_t block);

// alpha and beta of each product of a step; its gram has {1, 0}.
struct NsScaling {
  float alpha, beta;
};
struct NsStep {
  bool has_polynomial;  // false: the gram takes its place in the update
  NsScaling polynomial, update;
};

// X = a X + b A X where c is 0: nothing is squared, and b A is not rounded before it multiplies X.
inline NsStep ns_step_of(const NewtonSchulzCoefficients& k) {
  if (k.c == 0) return {false, {0, 0}, {k.b, k.a}};
  return {true, {k.c, k.b}, {1, k.a}};
}

// How many steps each multiplication of X by a factor makes on the Gram matrix: at most three, as
// equal as they can be, the longer ones first.
std::vector<int> gram_passes(int steps);

// How often X is multiplied.
inline int multiplications_of(const NewtonSchulzShape& shape, int steps) {
  return shape.on_gram ? static_cast<int>(gram_passes(steps).size()) : steps;
}

// Device memory of a batch. `iterate` and `next` hold batch * rows * columns elements, `gram` and
// `polynomial` (on_gram: `factor` and `spare`, too) batch * min(rows, columns)^2; all begin at
// multiples of 256 bytes.
struct NewtonSchulzBuffers {
  void* iterate;  // holds X on entry, normalised
  void* next;
  void* gram;
  void* polynomial;
  void* workspace;  // of kNewtonSchulzWorkspaceBytes
  void* factor = nullptr;
  void* spare = nullptr;
};
constexpr uint64_t kNewtonSchulzWorkspaceBytes = uint64_t{32} << 20;

inline void* buffer_of(const NewtonSchulzBuffers& buffers, NsOperand operand) {
  switch (operand) {
    case NsOperand::Iterate: return buffers.iterate;
    case NsOperand::Gram: return buffers.gram;
    case NsOperand::Polynomial: return buffers.polynomial;
    case NsOperand::Next: return buffers.next;
    case NsOperand::Factor: return buffers.factor;
    case NsOperand::Spare: return buffers.spare;
  }
  return nullptr;
}

// The buffers that a step's update takes its operands from.
inline NewtonSchulzBuffers buffers_of_update(NewtonSchulzBuffers buffers, const NsStep& step) {
  if (!step.has_polynomial) buffers.polynomial = buffers.gram;
  return buffers;
}

// Which buffer the result lies in when X was multiplied so often.
inline void* newton_schulz_result(const NewtonSchulzBuffers& buffers, int multiplications) {
  return multiplications % 2 == 0 ? buffers.iterate : buffers.next;
}

}  // namespace kernels

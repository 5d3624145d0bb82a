#pragma once

#include <ATen/core/Tensor.h>

namespace optim {

// The matrix products of Newton-Schulz steps, fp32, bf16 or fp16, cut into tiles by shape alone.
// LibTorch computes each tile with one thread; tiles run in parallel. Of a symmetric product only
// the lower half is computed.

// beta C + alpha A B, in one rounding where the element type has two bytes.
struct ProductScales {
  double beta = 0, alpha = 1;
};

at::Tensor gram_matrix(const at::Tensor& x);                               // x x^T
at::Tensor add_square(const at::Tensor& symmetric, ProductScales scales);  // beta s + alpha s s
// beta c + alpha a b of symmetric matrices of one size, whose product is symmetric, too.
at::Tensor add_symmetric(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                         ProductScales scales);
// beta x + alpha s x; s is square, with as many rows as x.
at::Tensor add_product(const at::Tensor& s, const at::Tensor& x, ProductScales scales);

// Whether all products for a matrix of this shape have a single tile.
bool is_one_tile(const at::Tensor& matrix);

}  // namespace optim

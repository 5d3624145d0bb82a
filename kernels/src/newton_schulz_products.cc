#include <kernels/newton_schulz_products.h>

namespace kernels {

// To BLAS, the row-major rows x columns matrix X is the column-major columns x rows matrix X^T.
NsProducts newton_schulz_products(const NewtonSchulzShape& shape) {
  const int64_t rows = shape.rows;
  const int64_t columns = shape.columns;
  const bool is_tall = rows > columns;
  const int64_t edge = is_tall ? columns : rows;
  const int64_t square = edge * edge;
  const int64_t whole = rows * columns;
  NsProducts products = {};
  const NsProduct gram = {.a = NsOperand::Iterate,
                          .b = NsOperand::Iterate,
                          .c = NsOperand::Gram,
                          .d = NsOperand::Gram,
                          .transpose_a = !is_tall,
                          .transpose_b = is_tall,
                          .m = edge,
                          .n = edge,
                          .k = is_tall ? rows : columns,
                          .a_leading = columns,
                          .b_leading = columns,
                          .d_leading = edge,
                          .a_stride = whole,
                          .b_stride = whole,
                          .d_stride = square};
  const NsProduct polynomial = {.a = NsOperand::Gram,
                                .b = NsOperand::Gram,
                                .c = NsOperand::Gram,
                                .d = NsOperand::Polynomial,
                                .transpose_a = false,
                                .transpose_b = false,
                                .m = edge,
                                .n = edge,
                                .k = edge,
                                .a_leading = edge,
                                .b_leading = edge,
                                .d_leading = edge,
                                .a_stride = square,
                                .b_stride = square,
                                .d_stride = square};
  products.update = {.a = is_tall ? NsOperand::Polynomial : NsOperand::Iterate,
                     .b = is_tall ? NsOperand::Iterate : NsOperand::Polynomial,
                     .c = NsOperand::Iterate,
                     .d = NsOperand::Next,
                     .transpose_a = false,
                     .transpose_b = false,
                     .m = columns,
                     .n = rows,
                     .k = edge,
                     .a_leading = columns,
                     .b_leading = edge,
                     .d_leading = columns,
                     .a_stride = is_tall ? square : whole,
                     .b_stride = is_tall ? whole : square,
                     .d_stride = whole};
  const int64_t block = shape.symmetric_block > 0 ? shape.symmetric_block : edge;
  products.gram = blocks_of(gram, block);
  products.polynomial = blocks_of(polynomial, block);
  return products;
}

}  // namespace kernels

#include <kernels/newton_schulz_products.h>

#include <algorithm>

namespace kernels {
namespace {

// d = p b + c, of squares as large as this one.
NsProduct of_polynomial(NsProduct square, NsOperand b, NsOperand c, NsOperand d) {
  square.a = NsOperand::Polynomial;
  square.b = b;
  square.c = c;
  square.d = d;
  return square;
}

void add_gram_products(NsProducts& p) {
  p.half = of_polynomial(p.polynomial, NsOperand::Gram, NsOperand::Gram, NsOperand::Spare);
  p.next_gram = of_polynomial(p.polynomial, NsOperand::Spare, NsOperand::Spare, NsOperand::Gram);
  p.factor = of_polynomial(p.polynomial, NsOperand::Factor, NsOperand::Spare, NsOperand::Spare);
}

}  // namespace

// To BLAS, the row-major rows x columns matrix X is the column-major columns x rows matrix X^T.
NsProducts newton_schulz_products(const NewtonSchulzShape& shape) {
  const int64_t rows = shape.rows;
  const int64_t columns = shape.columns;
  const bool is_tall = rows > columns;
  const int64_t edge = is_tall ? columns : rows;
  const int64_t square = edge * edge;
  const int64_t whole = rows * columns;
  NsProducts products = {};
  products.gram = {.a = NsOperand::Iterate,
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
  products.polynomial = {.a = NsOperand::Gram,
                         .b = NsOperand::Gram,
                         .c = NsOperand::Gram,
                         .d = NsOperand::Polynomial,
                         .m = edge,
                         .n = edge,
                         .k = edge,
                         .a_leading = edge,
                         .b_leading = edge,
                         .d_leading = edge,
                         .a_stride = square,
                         .b_stride = square,
                         .d_stride = square};
  add_gram_products(products);
  const NsOperand applied = shape.on_gram ? NsOperand::Factor : NsOperand::Polynomial;
  products.update = {.a = is_tall ? applied : NsOperand::Iterate,
                     .b = is_tall ? NsOperand::Iterate : applied,
                     .c = NsOperand::Iterate,
                     .d = NsOperand::Next,
                     .m = columns,
                     .n = rows,
                     .k = edge,
                     .a_leading = columns,
                     .b_leading = edge,
                     .d_leading = columns,
                     .a_stride = is_tall ? square : whole,
                     .b_stride = is_tall ? whole : square,
                     .d_stride = whole};
  return products;
}

std::vector<int> gram_passes(int steps) {
  constexpr int kStepsMost = 3;
  const int count = (steps + kStepsMost - 1) / kStepsMost;
  std::vector<int> passes;
  for (int left = count; left > 0; --left) {
    passes.push_back((steps + left - 1) / left);
    steps -= passes.back();
  }
  return passes;
}

std::vector<NsProduct> blocks_of(const NsProduct& whole, int64_t block) {
  if (block == 0) return {whole};
  const int64_t a_step = whole.transpose_a ? whole.a_leading : 1;  // to the next row of op(a)
  const int64_t b_step = whole.transpose_b ? 1 : whole.b_leading;  // to the next column of op(b)
  std::vector<NsProduct> blocks;
  for (int64_t column = 0; column < whole.n; column += block) {
    for (int64_t row = column; row < whole.m; row += block) {
      NsProduct part = whole;
      part.m = std::min(block, whole.m - row);
      part.n = std::min(block, whole.n - column);
      part.a_offset += row * a_step;
      part.b_offset += column * b_step;
      part.d_offset += row + column * whole.d_leading;
      blocks.push_back(part);
    }
  }
  return blocks;
}

}  // namespace kernels

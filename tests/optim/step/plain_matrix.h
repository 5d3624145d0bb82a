#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "optim/step/tensors.h"

// Linear algebra in plain loops in double, for second implementations that are easy to read.
struct Matrix {
  size_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix(size_t r, size_t c) : rows(r), columns(c), values(r * c, 0) {}
  explicit Matrix(const at::Tensor& tensor)
      : Matrix(static_cast<size_t>(tensor.size(0)), static_cast<size_t>(tensor.size(1))) {
    const std::vector<float> all = values_of(tensor);
    values.assign(all.begin(), all.end());
  }
  double& operator()(size_t r, size_t c) { return values[r * columns + c]; }
  double operator()(size_t r, size_t c) const { return values[r * columns + c]; }
};

inline Matrix transposed(const Matrix& m) {
  Matrix t(m.columns, m.rows);
  for (size_t r = 0; r < m.rows; ++r) {
    for (size_t c = 0; c < m.columns; ++c) t(c, r) = m(r, c);
  }
  return t;
}

inline Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows, b.columns);
  for (size_t r = 0; r < a.rows; ++r) {
    for (size_t k = 0; k < a.columns; ++k) {
      for (size_t c = 0; c < b.columns; ++c) product(r, c) += a(r, k) * b(k, c);
    }
  }
  return product;
}

template <class F>
Matrix each(const Matrix& a, const Matrix& b, F&& f) {
  Matrix result(a.rows, a.columns);
  for (size_t i = 0; i < a.values.size(); ++i) result.values[i] = f(a.values[i], b.values[i]);
  return result;
}

inline Matrix averaged(const Matrix& a, const Matrix& b, double weight) {
  return each(a, b, [&](double x, double y) { return x + weight * (y - x); });
}

inline Matrix scaled(const Matrix& a, double factor) {
  return each(a, a, [&](double x, double) { return x * factor; });
}

inline double frobenius(const Matrix& a) {
  double sum = 0;
  for (const double value : a.values) sum += value * value;
  return std::sqrt(sum);
}

inline Matrix identity(size_t size) {
  Matrix one(size, size);
  for (size_t i = 0; i < size; ++i) one(i, i) = 1;
  return one;
}

inline Matrix columns_of(const Matrix& m, const std::vector<size_t>& order) {
  Matrix picked(m.rows, order.size());
  for (size_t r = 0; r < m.rows; ++r) {
    for (size_t c = 0; c < order.size(); ++c) picked(r, c) = m(r, order[c]);
  }
  return picked;
}

inline std::vector<double> diagonal_in(const Matrix& a, const Matrix& basis) {
  const Matrix inside = transposed(basis) * a * basis;
  std::vector<double> diagonal;
  for (size_t i = 0; i < a.rows; ++i) diagonal.push_back(inside(i, i));
  return diagonal;
}

inline std::vector<size_t> descending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// Jacobi's rotations; columns by descending eigenvalue.
inline Matrix eigenvectors(Matrix a) {
  Matrix vectors = identity(a.rows);
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (size_t p = 0; p < a.rows; ++p) {
      for (size_t q = p + 1; q < a.rows; ++q) {
        if (a(p, q) == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a(p, q), a(q, q) - a(p, p));
        Matrix rotation = identity(a.rows);
        rotation(p, p) = rotation(q, q) = std::cos(angle);
        rotation(p, q) = std::sin(angle);
        rotation(q, p) = -std::sin(angle);
        a = transposed(rotation) * a * rotation;
        vectors = vectors * rotation;
      }
    }
  }
  return columns_of(vectors, descending(diagonal_in(a, identity(a.rows))));
}

// Gram and Schmidt, twice; Q up to the signs of its columns.
inline Matrix orthonormal(Matrix m) {
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t c = 0; c < m.columns; ++c) {
      for (size_t before = 0; before < c; ++before) {
        double dot = 0;
        for (size_t r = 0; r < m.rows; ++r) dot += m(r, before) * m(r, c);
        for (size_t r = 0; r < m.rows; ++r) m(r, c) -= dot * m(r, before);
      }
      double length = 0;
      for (size_t r = 0; r < m.rows; ++r) length += m(r, c) * m(r, c);
      for (size_t r = 0; r < m.rows; ++r) m(r, c) /= std::sqrt(length);
    }
  }
  return m;
}

// max |a - b| / max |b|
inline double relative_difference(const at::Tensor& ours, const Matrix& theirs) {
  const std::vector<float> values = values_of(ours);
  double difference = 0, largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    difference = std::max(difference, std::abs(values[i] - theirs.values[i]));
    largest = std::max(largest, std::abs(theirs.values[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

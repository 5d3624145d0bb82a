#pragma once

#include <ATen/core/Tensor.h>

#include <optim/emerging_rules.h>

// SOAP's linear algebra: products, factors and bases of one matrix. Everything with the calling
// thread alone, in the order of the reference's operations.
namespace optim {

// One of the two sides of a matrix.
struct SoapSide {
  at::Tensor factor, basis;  // L and Q_L, or R and Q_R
};

struct SoapBases {
  SoapSide left, right;
};

// x y in fp32; Medium rounds both to bf16 before.
at::Tensor product(const at::Tensor& x, const at::Tensor& y, MatmulPrecision precision);

// Q_L^T x Q_R, and Q_L x Q_R^T.
at::Tensor into_basis(const at::Tensor& x, const SoapBases& bases, MatmulPrecision precision);
at::Tensor out_of_basis(const at::Tensor& x, const SoapBases& bases, MatmulPrecision precision);

struct FactorUpdate {
  double shampoo_beta = 0;
  double eps = 0;  // of KL-Shampoo
  bool is_kl = false;
  MatmulPrecision precision = MatmulPrecision::High;
};
// Averages the gradient's outer products into factors of their own: the given ones stay.
SoapBases with_updated_factors(const SoapBases& bases, const at::Tensor& grad,
                               const FactorUpdate& update);

// Whether both bases still diagonalise their factors well enough (0.2's adaptive criteria).
bool meet_criteria(const SoapBases& bases, double tolerance, MatmulPrecision precision);

// New bases and what is kept in them.
struct SoapRefresh {
  SoapBases bases;
  at::Tensor exp_avg, exp_avg_sq;
};
SoapRefresh refreshed(const SoapRefresh& before, const SoapRule& rule, bool use_eigh);

}  // namespace optim

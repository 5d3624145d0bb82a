#include "step/rules/soap_basis.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <c10/util/Exception.h>

#include <tuple>

namespace optim {
namespace {

// diag(Q^T A Q): eigenvalues, as far as Q is A's basis.
at::Tensor approximate_eigenvalues(const SoapSide& side, MatmulPrecision precision) {
  const at::Tensor basis_t = side.basis.t();
  return at::mul(product(basis_t, side.factor, precision), basis_t).sum(1);
}

// Q diag(1 / (size max(lambda, eps))) Q^T: what KL-Shampoo weighs the other side with.
at::Tensor inverse_factor(const SoapSide& side, const FactorUpdate& update) {
  const auto size = static_cast<double>(side.factor.size(0));
  const at::Tensor scale = approximate_eigenvalues(side, update.precision)
                               .clamp_min(update.eps)
                               .reciprocal()
                               .mul(1 / size);
  return product(at::mul(side.basis, scale.unsqueeze(0)), side.basis.t(), update.precision);
}

bool is_diagonal(const at::Tensor& matrix) {
  const auto has_any = [](const at::Tensor& part) { return part.ne(0).any().item<bool>(); };
  return !has_any(at::triu(matrix, 1)) && !has_any(at::tril(matrix, -1));
}

at::Tensor eigenvectors_of(const at::Tensor& matrix) {
  try {
    return std::get<1>(at::linalg_eigh(matrix, "L"));
  } catch (const c10::Error&) {  // did not converge: once more in fp64, as the reference does
    return std::get<1>(at::linalg_eigh(matrix.to(at::kDouble), "L")).to(at::kFloat);
  }
}

// Columns by descending eigenvalue.
at::Tensor eigenbasis(const at::Tensor& factor, EmergingOptimizers era) {
  if (era == EmergingOptimizers::V0_3) return at::flip(eigenvectors_of(factor), {-1});
  const at::Tensor identity = at::eye(factor.size(0), factor.options());
  if (is_diagonal(factor)) {
    // Ascending, then descending: ties come out in the order of the reference's two sorts.
    const at::Tensor diagonal = factor.diagonal();
    const auto [values, ascending] = diagonal.sort();
    const auto [sorted, descending] = values.sort(-1, /*descending=*/true);
    return at::index_select(at::index_select(identity, 1, ascending), 1, descending);
  }
  constexpr double kStabilizer = 1e-7;
  const at::Tensor stabilized = factor.addmm(identity, identity, 1, kStabilizer);
  return at::flip(eigenvectors_of(stabilized), {-1});
}

at::Tensor power_iterated(const SoapSide& side, const SoapRule& rule) {
  at::Tensor basis = side.basis;
  for (int64_t i = 0; i < rule.power_iter_steps; ++i) {
    basis = std::get<0>(at::linalg_qr(product(side.factor, basis, rule.qr_fp32_matmul_prec)));
  }
  return basis;
}

// Its columns by descending approximate eigenvalue, and `squares` along `dim` in the same order.
SoapSide sorted(const SoapSide& side, int64_t dim, MatmulPrecision precision, at::Tensor& squares) {
  const at::Tensor order =
      at::argsort(approximate_eigenvalues(side, precision), -1, /*descending=*/true);
  squares = at::index_select(squares, dim, order);
  return {side.factor, at::index_select(side.basis, 1, order)};
}

bool meets_criteria(const SoapSide& side, double tolerance, MatmulPrecision precision) {
  const auto norm = at::linalg_vector_norm(side.factor).item<float>();
  const auto diagonal =
      at::linalg_vector_norm(approximate_eigenvalues(side, precision)).item<float>();
  return static_cast<float>(tolerance) * norm >= norm - diagonal;
}

}  // namespace

at::Tensor product(const at::Tensor& x, const at::Tensor& y, MatmulPrecision precision) {
  if (precision != MatmulPrecision::Medium) return at::mm(x, y);
  const auto rounded = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
  return at::mm(rounded(x), rounded(y));
}

at::Tensor into_basis(const at::Tensor& x, const SoapBases& bases, MatmulPrecision precision) {
  const at::Tensor half = product(x.t(), bases.left.basis, precision);
  return product(half.t(), bases.right.basis, precision);
}

at::Tensor out_of_basis(const at::Tensor& x, const SoapBases& bases, MatmulPrecision precision) {
  const at::Tensor half = product(x.t(), bases.left.basis.t(), precision);
  return product(half.t(), bases.right.basis.t(), precision);
}

SoapBases with_updated_factors(const SoapBases& bases, const at::Tensor& grad,
                               const FactorUpdate& update) {
  const at::Tensor grad_t = grad.t();
  at::Tensor left, right;
  const MatmulPrecision precision = update.precision;
  if (update.is_kl) {
    const at::Tensor by_left = inverse_factor(bases.left, update);
    right = product(product(grad_t, by_left, precision), grad, precision);
    const at::Tensor by_right = inverse_factor(bases.right, update);
    left = product(product(grad, by_right, precision), grad_t, precision);
  } else {
    left = product(grad, grad_t, precision);
    right = product(grad_t, grad, precision);
  }
  const double weight = 1 - update.shampoo_beta;
  return {{at::lerp(bases.left.factor, left, weight), bases.left.basis},
          {at::lerp(bases.right.factor, right, weight), bases.right.basis}};
}

bool meet_criteria(const SoapBases& bases, double tolerance, MatmulPrecision precision) {
  return meets_criteria(bases.left, tolerance, precision) &&
         meets_criteria(bases.right, tolerance, precision);
}

SoapRefresh refreshed(const SoapRefresh& before, const SoapRule& rule, bool use_eigh) {
  const MatmulPrecision precision = rule.qr_fp32_matmul_prec;
  const at::Tensor exp_avg = out_of_basis(before.exp_avg, before.bases, precision);
  SoapRefresh after = before;
  if (!use_eigh || rule.era == EmergingOptimizers::V0_3) {
    after.bases.left = sorted(before.bases.left, 0, precision, after.exp_avg_sq);
    after.bases.right = sorted(before.bases.right, 1, precision, after.exp_avg_sq);
  }
  for (SoapSide* const side : {&after.bases.left, &after.bases.right}) {
    side->basis = use_eigh ? eigenbasis(side->factor, rule.era) : power_iterated(*side, rule);
  }
  after.exp_avg = into_basis(exp_avg, after.bases, precision);
  return after;
}

}  // namespace optim

#include "step/rules/soap_state.h"

#include <ckpt/error.h>
#include <optim/emerging_rules.h>
#include <optim/rule_table.h>
#include <algorithm>
#include <cmath>
#include <string>

#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

struct Named {
  const UpdateTarget& target;
  std::string_view state;
  [[noreturn]] void refuse(const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument,
                      {.file = {}, .key = std::string(state) + "." + target.info->name}, problem);
  }
};

// Necessary for a positive semi-definite matrix, and seen in one pass: rounding leaves a little of
// the largest number on the diagonal.
void check_factor(const at::Tensor& factor, const Named& named) {
  const int64_t size = factor.size(0);
  const at::Tensor dense = factor.contiguous();
  const auto* const values = dense.const_data_ptr<float>();
  double largest = 0;
  for (int64_t i = 0; i < size; ++i)
    largest = std::max(largest, std::abs(double{values[i * (size + 1)]}));
  constexpr double kRounding = 1e-4;
  const double slack = kRounding * largest;
  for (int64_t row = 0; row < size; ++row) {
    const double a = values[row * (size + 1)];
    if (a < -slack) {
      named.refuse("the factor is not positive semi-definite: its diagonal holds " +
                   std::to_string(a));
    }
    for (int64_t column = 0; column < row; ++column) {
      const double below = values[row * size + column], above = values[column * size + row];
      const double b = std::max(std::abs(below), std::abs(above));
      const double limit = (a + slack) * (values[column * (size + 1)] + slack);
      if (b * b > limit) {
        named.refuse("the factor is not positive semi-definite: row " + std::to_string(row) +
                     ", column " + std::to_string(column) + " holds " + std::to_string(b));
      }
    }
  }
}

void check_squares(const at::Tensor& squares, const Named& named) {
  const at::Tensor dense = squares.contiguous();
  const auto* const values = dense.const_data_ptr<float>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    if (values[i] < 0) named.refuse("holds " + std::to_string(values[i]) + ", a negative square");
  }
}

}  // namespace

void check_soap_state(const UpdateTarget& target) {
  const at::IntArrayRef sizes = target.param.sizes();
  for (const StateSpec& spec : states_of(SoapRule(), {sizes.data(), sizes.size()})) {
    const auto found = target.state->find(std::string(spec.name));
    if (found == target.state->end() || !found->second.defined()) continue;
    const at::Tensor& state = found->second;
    const Named named{target, spec.name};
    if (state.sizes() != at::IntArrayRef(spec.shape)) named.refuse("has a different shape");
    const double squares = sum_of_squares(state.contiguous());
    if (!std::isfinite(squares)) {
      named.refuse("holds " + std::string(std::isnan(squares) ? "NaN" : "infinity"));
    }
    if (spec.name == "L" || spec.name == "R") check_factor(state, named);
    if (spec.kind == StateSpec::Kind::SecondMoment) check_squares(state, named);
  }
}

}  // namespace optim

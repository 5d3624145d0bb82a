#include <optim/emerging_rules.h>

#include <ATen/ops/div.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/square.h>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <cmath>
#include <string>

#include "rules/refuse_key.h"
#include "step/loops/grad_stats_kernels.h"
#include "step/loops/single_thread.h"
#include "step/rules/chunks.h"
#include "step/rules/makers.h"
#include "step/rules/muon_direction.h"
#include "step/rules/soap_basis.h"

namespace optim {
namespace {

struct Named {
  const UpdateTarget& target;
  std::string_view state;
  [[noreturn]] void refuse(const std::string& problem) const {
    refuse_key(std::string(state) + "." + target.info->name, problem);
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

// Throws Error(InvalidArgument), with "STATE.PARAMETER", for a state of SOAP that no step can begin
// from: NaN or infinity in any, another shape, negative squares, a factor that is not positive
// semi-definite (a negative number on its diagonal, or one beside it that is too large for a
// 2 x 2 minor). Absent states are fine.
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
// Adam in the eigenbasis of Shampoo's factors.
class Soap final : public UpdateRule {
 public:
  explicit Soap(const SoapRule& config) : UpdateRule(config), config_(config) {}

  void check(const UpdateTarget& target) const override {
    check_matrix(target, "SOAP");
    check_soap_state(target);
  }

  // Each parameter by one thread: LAPACK's sums would depend on how many there are.
  void update_all(std::span<const UpdateItem> items) const override {
    for (const UpdateItem& item : items) {
      check(item.target);
      init_state(item.target.param, *item.target.state);
    }
    at::parallel_for(0, static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;
      const SingleThread single_thread;
      for (int64_t i = begin; i < end; ++i) update_one(items[static_cast<size_t>(i)]);
    });
  }

 private:
  static SoapRefresh state_of_item(const UpdateItem& item) {
    ParamState& state = *item.target.state;
    return {{{state.at("L"), state.at("Q_L")}, {state.at("R"), state.at("Q_R")}},
            state.at("exp_avg"),
            state.at("exp_avg_sq")};
  }

  static void keep(const SoapRefresh& state, const UpdateItem& item) {
    ParamState& kept = *item.target.state;
    const std::pair<const char*, const at::Tensor*> all[] = {
        {"L", &state.bases.left.factor},  {"R", &state.bases.right.factor},
        {"Q_L", &state.bases.left.basis}, {"Q_R", &state.bases.right.basis},
        {"exp_avg", &state.exp_avg},      {"exp_avg_sq", &state.exp_avg_sq}};
    for (const auto& [name, tensor] : all) {
      at::Tensor& place = kept.at(name);
      if (!place.is_same(*tensor)) place = tensor->contiguous();
    }
  }

  void update_one(const UpdateItem& item) const {
    at::Tensor grad = effective_grad(item);
    SoapRefresh state = with_basis(item, grad);
    const bool in_basis = done(item) >= config_.adam_warmup_steps;
    apply_decay(config_.weight_decay_method, item, grad);
    at::Tensor update = adam_update(
        in_basis ? into_basis(grad, state.bases, config_.fp32_matmul_prec) : grad, item, state);
    if (in_basis) update = out_of_basis(update, state.bases, config_.fp32_matmul_prec);
    if (config_.max_update_rms > 0) clip_rms(update);
    at::Tensor(item.target.param).add_(update, -item.context.lr);
    keep(state, item);
    write_rounded(item.target);
  }

  static int64_t done(const UpdateItem& item) { return item.context.step - 1; }

  // The factors with this gradient in them, and the basis that follows from them.
  SoapRefresh with_basis(const UpdateItem& item, const at::Tensor& grad) const {
    const bool corrects = config_.correct_shampoo_beta_bias.value_or(config_.correct_bias);
    const auto step = static_cast<double>(item.context.step);
    double beta = config_.shampoo_beta;
    if (corrects) beta = 1 - (1 - beta) / (1 - std::pow(beta, step));
    SoapRefresh state = state_of_item(item);
    state.bases = with_updated_factors(
        state.bases, grad, {beta, config_.eps, config_.use_kl_shampoo, config_.fp32_matmul_prec});
    if (!is_refresh(done(item))) return state;
    const bool is_first = done(item) == config_.adam_warmup_steps;
    const bool is_good =
        config_.use_adaptive_criteria && !is_first &&
        meet_criteria(state.bases, config_.adaptive_update_tolerance, MatmulPrecision::Highest);
    return is_good ? state : refreshed(state, config_, config_.use_eigh || is_first);
  }

  bool is_refresh(int64_t steps_done) const {
    if (steps_done < config_.adam_warmup_steps) return false;
    return steps_done % frequency_at(config_.precondition_frequency, steps_done) == 0;
  }

  at::Tensor adam_update(const at::Tensor& grad, const UpdateItem& item, SoapRefresh& state) const {
    const auto step = static_cast<double>(item.context.step);
    const double beta1 = config_.beta1, beta2 = config_.beta2;
    const auto correction = [&](double beta, double steps) {
      return config_.correct_bias ? 1 - std::pow(beta, steps) : 1.0;
    };
    state.exp_avg = at::lerp(state.exp_avg, grad, 1 - beta1);
    state.exp_avg_sq = at::lerp(state.exp_avg_sq, at::square(grad), 1 - beta2);
    at::Tensor momentum;
    if (config_.nesterov) {
      momentum = at::mul(state.exp_avg, beta1).div_(correction(beta1, step + 1));
      momentum.add_(at::mul(grad, 1 - beta1).div_(correction(beta1, step)));
    } else {
      momentum = at::div(state.exp_avg, correction(beta1, step));
    }
    const at::Tensor root =
        at::div(state.exp_avg_sq, correction(beta2, step)).sqrt_().add_(config_.eps);
    return momentum.div_(root);
  }

  void clip_rms(at::Tensor& update) const {
    constexpr double kEps = 1e-7;
    const at::Tensor rms = at::square(update).mean().sqrt_().add_(kEps);
    update = update.contiguous().mul_(rms.reciprocal_().mul_(config_.max_update_rms).clamp_max_(1));
  }

  SoapRule config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_soap(const RuleConfig& config) {
  return std::make_unique<Soap>(*config.get_if<SoapRule>());
}

}  // namespace optim

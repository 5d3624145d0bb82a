// What a recorded step did, told from its inputs and its outcome by least squares: the factor of
// its gradients, the share of decay, the learning rate. What no such number explains is another
// formula, or other inputs.
#include "explain.h"

#include <ATen/ops/dot.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

constexpr double kEpsilon = 1.0 / (1 << 24);  // half a unit in the last place of fp32
// How many such roundings an element goes through in a part, generously.
constexpr double kRoundings = 8;
constexpr double kFactorBound = 2e-6;  // relative: a norm summed in fp32 by many ranks
constexpr double kSquareBound = 4 * kFactorBound;
// Of the length of a matrix's update: another order of sums moves Newton-Schulz in bf16 by up to
// 1.7 % (docs/optimizer.md, "Tolerances").
constexpr double kDirectionBound = 2e-2;

double length(const at::Tensor& tensor) { return std::sqrt(sum_of_squares(tensor.contiguous())); }

at::Tensor flat(const at::Tensor& tensor) { return tensor.reshape({-1}).to(at::kDouble); }

at::Tensor change(const at::Tensor& after, const at::Tensor& before) {
  return at::sub(flat(after), flat(before));
}

double product(const at::Tensor& a, const at::Tensor& b) { return at::dot(a, b).item<double>(); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// target = first * a + second * b + rest, with the shortest rest. fp64.
struct Fit {
  double first = 0, second = 0, rest = 0;
  double independence = 1;  // sine squared of the angle between a and b
};
Fit fit(const at::Tensor& target, const at::Tensor& a, const at::Tensor& b) {
  const double aa = product(a, a), bb = product(b, b), ab = product(a, b);
  const double ta = product(target, a), tb = product(target, b);
  Fit found;
  constexpr double kIndependenceMin = 1e-6;  // below, one of the two explains both
  found.independence = aa > 0 && bb > 0 ? 1 - ab * ab / (aa * bb) : 1;
  if (aa > 0 && bb > 0 && found.independence > kIndependenceMin) {
    const double determinant = aa * bb - ab * ab;
    found.first = (ta * bb - tb * ab) / determinant;
    found.second = (tb * aa - ta * ab) / determinant;
  } else if (aa > 0) {
    found.first = ta / aa;
  } else if (bb > 0) {
    found.second = tb / bb;
  }
  const at::Tensor rest = at::sub(at::sub(target, a, found.first), b, found.second);
  found.rest = std::sqrt(product(rest, rest));
  return found;
}

// The first moment of a rule whose moments are running sums of gradients; empty: it has none.
std::string_view first_moment(const StepInputs& inputs) {
  std::string_view found;
  for (const StateSpec& state : states_of(inputs.group.rule_config, inputs.info.shape)) {
    if (state.kind == StateSpec::Kind::Factor) return {};  // in another basis
    if (state.kind == StateSpec::Kind::FirstMoment && found.empty()) found = state.name;
  }
  return found;
}

class PartFinder {
 public:
  PartFinder(const StepInputs& inputs, const StepRecord& record)
      : inputs_(inputs),
        record_(record),
        ours_(stepped(inputs.grad_scale, inputs.weight_decay)),
        factor_(inputs.grad_scale) {}

  PartFinding run() {
    const std::string_view moment = first_moment(inputs_);
    if (!moment.empty() && ours_.state.contains(std::string(moment))) {
      judge_first_moment(std::string(moment));
    }
    judge_other_states();
    if (!finding_.part || finding_.part == StepPart::Clip) judge_update();
    judge_cast();
    if (!finding_.part) finding_.part = first_rounded();
    return finding_;
  }

 private:
  struct Stepped {
    at::Tensor param;
    ParamState state;
  };

  Stepped stepped(double factor, double weight_decay, bool from_zero = false) const {
    Stepped made{from_zero ? at::zeros_like(inputs_.param) : inputs_.param.clone(), {}};
    for (const auto& [name, tensor] : inputs_.state) made.state[name] = tensor.clone();
    inputs_.group.rule->update({&inputs_.info, made.param, inputs_.grad.clone(), &made.state},
                               {.lr = inputs_.lr,
                                .weight_decay = weight_decay,
                                .step = inputs_.step + 1,
                                .grad_scale = factor});
    return made;
  }

  void note(StepPart part, double ours, double recorded) {
    finding_.numbers[static_cast<size_t>(part)] = PartFinding::Numbers{ours, recorded};
  }
  void differs(StepPart part) {
    if (!finding_.part) finding_.part = part;
    finding_.is_rounding = false;
  }

  // m = m(without gradient) + factor * its share, and with L2 decay + the parameter's.
  void judge_first_moment(const std::string& moment) {
    const at::Tensor& recorded = record_.state.at(moment);
    const double wd = inputs_.weight_decay;
    const at::Tensor without = stepped(0, wd).state.at(moment);
    const at::Tensor of_grad = change(ours_.state.at(moment), without);
    const at::Tensor undecayed = wd == 0 ? without : stepped(0, 0).state.at(moment);
    const at::Tensor of_decay = change(without, undecayed);
    decay_joins_ = product(of_decay, of_decay) > 0;
    const Fit found = fit(change(recorded, undecayed), of_grad, of_decay);
    const double grad_length = std::sqrt(product(of_grad, of_grad));
    const double noise = kRoundings * kEpsilon * (length(without) + length(recorded));
    if (grad_length > 0) {
      const double factor = found.first * inputs_.grad_scale;
      note(StepPart::Clip, inputs_.grad_scale, factor);
      const double bound = kFactorBound + noise / (grad_length * found.independence);
      if (std::abs(found.first - 1) > bound) {
        differs(StepPart::Clip);
        factor_ = factor;
      }
    }
    const double decay_length = std::sqrt(product(of_decay, of_decay));
    const double decayed = decay_length * std::abs(found.second - 1);
    const double unexplained = std::max(found.rest, decay_length > 0 ? decayed : 0);
    const bool is_beyond =
        unexplained > noise / found.independence + kFactorBound * (grad_length + decay_length);
    if (!is_beyond) return;
    note(StepPart::Momentum, 0, unexplained / std::max(length(recorded), noise));
    finding_.part.reset();  // no factor explains it
    differs(StepPart::Momentum);
    factor_ = inputs_.grad_scale;
  }

  // With the factor that the first moment shows.
  const Stepped& with_factor() {
    if (factor_ == inputs_.grad_scale) return ours_;
    if (!with_factor_) with_factor_ = stepped(factor_, inputs_.weight_decay);
    return *with_factor_;
  }

  void judge_other_states() {
    const std::string_view moment = first_moment(inputs_);
    for (const StateSpec& state : states_of(inputs_.group.rule_config, inputs_.info.shape)) {
      if (state.name == moment) continue;
      const std::string name(state.name);
      const at::Tensor& recorded = record_.state.at(name);
      const double apart =
          std::sqrt(sum_of_squares(at::sub(with_factor().state.at(name), recorded)));
      const bool is_factor = state.kind == StateSpec::Kind::Factor;
      const double bound = is_factor ? kDirectionBound : kSquareBound + kRoundings * kEpsilon;
      if (apart <= bound * length(recorded)) continue;
      const StepPart part = is_factor ? StepPart::Orthogonalization : StepPart::Momentum;
      if (finding_.part && finding_.part != StepPart::Clip) return;
      note(part, 0, apart / std::max(length(recorded), kEpsilon));
      differs(part);
      return;
    }
  }

  bool is_matrix() const { return rule_named(inputs_.group.rule_config.name()).needs_matrix; }
  StepPart direction_part() const {
    return is_matrix() ? StepPart::Orthogonalization : StepPart::Update;
  }

  // p' = p - decay * p - lr * direction.
  void judge_update() {
    const Stepped& expected = with_factor();
    const at::Tensor start = flat(inputs_.param);
    const at::Tensor direction = decay_joins_ ? change(expected.param, inputs_.param)
                                              : flat(stepped(factor_, 0, /*from_zero=*/true).param);
    const Fit ours = fit(change(expected.param, inputs_.param), direction, start);
    const Fit recorded = fit(change(record_.param, inputs_.param), direction, start);
    const double step_length = std::sqrt(product(direction, direction));
    const double noise = kRoundings * kEpsilon * (length(inputs_.param) + length(record_.param));
    const double bound = noise + (is_matrix() ? kDirectionBound : kFactorBound) * step_length;
    if (ours.rest > bound) return judge_whole_update(expected);  // a rule of another form
    if (recorded.rest > bound) {
      note(direction_part(), 0, recorded.rest / std::max(step_length, noise));
      return differs(direction_part());
    }
    // What is left over may as well lie along the two that are fitted.
    const double unexplained = (noise + recorded.rest) / ours.independence;
    note(StepPart::Decay, -ours.second, -recorded.second);
    const double share_bound = unexplained / std::max(length(inputs_.param), noise);
    // Decay is mostly times the learning rate: a share that differs as that does is the rate's.
    const double with_rate = ours.first != 0 ? ours.second * recorded.first / ours.first : 0;
    const bool is_same_decay = std::abs(ours.second - recorded.second) <= share_bound ||
                               std::abs(with_rate - recorded.second) <= share_bound;
    if (!is_same_decay) differs(StepPart::Decay);
    if (step_length == 0) return;
    note(StepPart::Update, inputs_.lr * ours.first, inputs_.lr * recorded.first);
    const double rate_bound = kFactorBound + unexplained / step_length;
    if (std::abs(ours.first - recorded.first) > rate_bound) differs(StepPart::Update);
  }

  void judge_whole_update(const Stepped& expected) {
    const double apart = length(at::sub(expected.param, record_.param));
    const double moved = length(at::sub(expected.param, inputs_.param));
    if (apart <= kDirectionBound * moved) return;
    note(direction_part(), 0, apart / std::max(moved, kEpsilon));
    differs(direction_part());
  }

  void judge_cast() {
    if (!record_.weight.defined()) return;
    const at::Tensor rounded = record_.param.to(record_.weight.scalar_type()).contiguous();
    int64_t elements = 0;
    const auto* const a = static_cast<const uint16_t*>(rounded.const_data_ptr());
    const auto* const b = static_cast<const uint16_t*>(record_.weight.const_data_ptr());
    for (int64_t i = 0; i < rounded.numel(); ++i) elements += a[i] == b[i] ? 0 : 1;
    note(StepPart::Cast, 0, static_cast<double>(elements));
    if (elements > 0) differs(StepPart::Cast);
  }

  // Where nothing is beyond rounding: what of it has other bits first.
  std::optional<StepPart> first_rounded() const {
    for (const auto& [name, tensor] : ours_.state) {
      if (same_bits(tensor, record_.state.at(name))) continue;
      return inputs_.grad_scale < 1 ? StepPart::Norm : StepPart::Momentum;
    }
    if (!same_bits(ours_.param, record_.param)) return direction_part();
    return std::nullopt;
  }

  const StepInputs& inputs_;
  const StepRecord& record_;
  Stepped ours_;
  double factor_;
  std::optional<Stepped> with_factor_;
  bool decay_joins_ = false;  // the moments
  PartFinding finding_;
};

constexpr double kSameFactor = 1e-3;  // relative, of the factors that parameters show
constexpr double kShareOfAll = 0.75;  // the factor of small gradients is lost in rounding

bool is_of_all(std::span<const std::pair<std::string, PartFinding>> findings) {
  int64_t known = 0, differing = 0;
  double least = std::numeric_limits<double>::infinity(), largest = -least;
  for (const auto& [name, finding] : findings) {
    const auto& numbers = finding.numbers[static_cast<size_t>(StepPart::Clip)];
    if (!numbers) continue;
    ++known;
    if (finding.part != StepPart::Clip) continue;
    ++differing;
    least = std::min(least, numbers->recorded);
    largest = std::max(largest, numbers->recorded);
  }
  const bool are_same = largest - least <= kSameFactor * std::abs(largest);
  return are_same && static_cast<double>(differing) >= kShareOfAll * static_cast<double>(known);
}

// A factor that was fitted, below 1.
bool is_clipping(double factor) { return factor > 0 && factor < 1 - kSameFactor; }

// The part that a finding counts for when the others are known.
StepPart settled(const PartFinding& finding, bool is_clip_of_all, const Clipping& clipping) {
  if (finding.part != StepPart::Clip) return *finding.part;
  if (!is_clip_of_all) return StepPart::Momentum;
  const auto& numbers = *finding.numbers[static_cast<size_t>(StepPart::Clip)];
  const bool both_clip = numbers.ours < 1 && is_clipping(numbers.recorded);
  return both_clip && !clipping.is_norm_recorded ? StepPart::Norm : StepPart::Clip;
}

std::optional<PartFinding::Numbers> numbers_of(const PartFinding& finding, StepPart part,
                                               const Clipping& clipping) {
  if (part != StepPart::Norm) return finding.numbers[static_cast<size_t>(part)];
  const auto& factor = finding.numbers[static_cast<size_t>(StepPart::Clip)];
  constexpr double kAdded = 1e-6;  // by clip_grad_by_total_norm()
  if (!factor || !is_clipping(factor->recorded) || clipping.max_norm <= 0) {
    return std::nullopt;
  }
  return PartFinding::Numbers{clipping.norm, clipping.max_norm / factor->recorded - kAdded};
}

}  // namespace

std::string_view name(StepPart part) {
  switch (part) {
    case StepPart::Norm: return "norm";
    case StepPart::Clip: return "clip";
    case StepPart::Momentum: return "momentum";
    case StepPart::Orthogonalization: return "orthogonalization";
    case StepPart::Decay: return "decay";
    case StepPart::Update: return "update";
    case StepPart::Cast: break;
  }
  return "cast";
}

PartFinding find_part(const StepInputs& inputs, const StepRecord& record) {
  return PartFinder(inputs, record).run();
}

std::vector<PartOfStep> summarize(std::span<const std::pair<std::string, PartFinding>> findings,
                                  const Clipping& clipping) {
  const bool is_clip_of_all = is_of_all(findings);
  std::vector<PartOfStep> parts;
  for (int i = 0; i < kStepParts; ++i) {
    PartOfStep row{.part = static_cast<StepPart>(i)};
    for (const auto& [name, finding] : findings) {
      const bool is_here = finding.part && settled(finding, is_clip_of_all, clipping) == row.part;
      const auto numbers = numbers_of(finding, row.part, clipping);
      const bool is_first = is_here && row.tensors == 0;
      if (is_here) ++row.tensors;
      if (is_first) row.tensor = name;
      if (!is_first && (row.ours || row.tensors > 0)) continue;
      row.ours = row.recorded = std::nullopt;
      if (!numbers) continue;
      row.ours = numbers->ours;
      row.recorded = numbers->recorded;
    }
    parts.push_back(std::move(row));
  }
  return parts;
}

}  // namespace optim

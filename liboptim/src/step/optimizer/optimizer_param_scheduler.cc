#include <optim/optimizer_param_scheduler.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>
#include <utility>

#include "rules/refuse_key.h"
#include "step/tensors/state_fields.h"

namespace optim {
namespace {

constexpr std::array<std::string_view, 5> kDecayStyles = {"constant", "linear", "cosine",
                                                          "inverse-square-root", "WSD"};
constexpr std::array<std::string_view, 3> kIncreaseStyles = {"constant", "linear", "cosine"};
constexpr std::array<std::string_view, 4> kWsdStyles = {"linear", "cosine", "exponential",
                                                        "minus_sqrt"};

void require_style(std::string_view key, std::string_view style,
                   std::span<const std::string_view> known) {
  if (std::ranges::find(known, style) != known.end()) return;
  refuse_key(key, "the style '" + ckpt::escaped(style) + "' is not known",
             ckpt::ErrorCode::Unsupported);
}

void require(bool holds, std::string_view key, const std::string& problem) {
  if (!holds) refuse_key(key, problem);
}

void validate(const SchedulerSettings& s) {
  require_style("lr_decay_style", s.lr_decay_style, kDecayStyles);
  require_style("wd_incr_style", s.wd_incr_style, kIncreaseStyles);
  require(s.min_lr >= 0 && s.max_lr >= s.min_lr, "max_lr",
          "is below min_lr, or min_lr is negative");
  require(s.init_lr <= s.max_lr, "lr_warmup_init", "is above max_lr");
  require(s.lr_decay_steps > 0, "lr_decay_steps", "is not positive");
  require(s.lr_warmup_steps >= 0 && s.lr_warmup_steps < s.lr_decay_steps, "lr_warmup_steps",
          "is not below lr_decay_steps");
  require(s.start_wd >= 0 && s.end_wd >= s.start_wd, "end_wd",
          "is below start_wd, or start_wd is negative");
  if (s.wd_incr_style == "constant") {
    require(s.start_wd == s.end_wd, "end_wd",
            "differs from start_wd, although the weight decay is constant");
  } else {
    require(s.wd_incr_steps > 0, "wd_incr_steps", "is not positive");
  }
  if (s.lr_decay_style == "WSD") {
    require_style("lr_wsd_decay_style", s.lr_wsd_decay_style, kWsdStyles);
    require(s.wsd_decay_steps > 0, "wsd_decay_steps", "is not positive");
  }
}

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

double ratio_of(int64_t steps, int64_t length) {
  return static_cast<double>(steps) / static_cast<double>(length);
}

double override_or(const ParamGroup& group, const char* key, double otherwise) {
  const auto found = group.others.find(key);
  if (found == group.others.end()) return otherwise;
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  if (const auto* whole = std::get_if<int64_t>(&found->second)) return static_cast<double>(*whole);
  refuse_key(key, "is not a number");
}

}  // namespace

OptimizerParamScheduler::OptimizerParamScheduler(Optimizer& optimizer, SchedulerSettings settings)
    : optimizer_(optimizer), settings_(std::move(settings)) {
  validate(settings_);
  step(0);
}

void OptimizerParamScheduler::step(int64_t increment) {
  num_steps_ += increment;
  for (OptimizerGroup* const group : optimizer_.param_groups()) {
    group->lr = get_lr(group->settings);
    group->weight_decay = get_wd(group->settings) * group->settings.wd_mult;
  }
}

// The order of operations is the reference's, so that rates are its doubles bit for bit.
double OptimizerParamScheduler::get_lr(const ParamGroup& group) const {
  const SchedulerSettings& s = settings_;
  const double max_lr = group.max_lr.value_or(s.max_lr);
  const double min_lr = group.min_lr.value_or(s.min_lr);
  if (s.lr_warmup_steps > 0 && num_steps_ <= s.lr_warmup_steps) {
    return s.init_lr + (max_lr - s.init_lr) * static_cast<double>(num_steps_) /
                           static_cast<double>(s.lr_warmup_steps);
  }
  if (s.lr_decay_style == "constant") return max_lr;
  if (num_steps_ > s.lr_decay_steps) return min_lr;
  if (s.lr_decay_style == "inverse-square-root") {
    const auto warmup = static_cast<double>(std::max<int64_t>(s.lr_warmup_steps, 1));
    const auto steps = static_cast<double>(std::max<int64_t>(num_steps_, 1));
    return std::max(min_lr, max_lr * std::pow(warmup, 0.5) / std::pow(steps, 0.5));
  }
  return min_lr + decay_coefficient() * (max_lr - min_lr);
}

double OptimizerParamScheduler::decay_coefficient() const {
  const SchedulerSettings& s = settings_;
  if (s.lr_decay_style == "WSD") return wsd_coefficient();
  const double ratio =
      ratio_of(num_steps_ - s.lr_warmup_steps, s.lr_decay_steps - s.lr_warmup_steps);
  return s.lr_decay_style == "linear" ? 1.0 - ratio : half_cosine(ratio);
}

double OptimizerParamScheduler::wsd_coefficient() const {
  const SchedulerSettings& s = settings_;
  const int64_t anneal_start = s.lr_decay_steps - s.wsd_decay_steps;
  if (num_steps_ <= anneal_start) return 1.0;
  const double ratio = ratio_of(num_steps_ - anneal_start, s.wsd_decay_steps);
  if (s.lr_wsd_decay_style == "linear") return 1.0 - ratio;
  if (s.lr_wsd_decay_style == "cosine") return half_cosine(ratio);
  if (s.lr_wsd_decay_style == "exponential") return 2.0 * std::pow(0.5, ratio) - 1.0;
  return 1.0 - std::sqrt(ratio);  // minus_sqrt
}

double OptimizerParamScheduler::get_wd(const ParamGroup& group) const {
  const SchedulerSettings& s = settings_;
  const double start = override_or(group, "start_wd", s.start_wd);
  const double end = override_or(group, "end_wd", s.end_wd);
  if (s.wd_incr_style == "constant" || num_steps_ > s.wd_incr_steps) return end;
  const double ratio = ratio_of(num_steps_, s.wd_incr_steps);
  const double coefficient = s.wd_incr_style == "linear" ? ratio : half_cosine(1 - ratio);
  return start + coefficient * (end - start);
}

StateDict OptimizerParamScheduler::state_dict() const {
  const SchedulerSettings& s = settings_;
  StateDict dict;
  put(dict, "max_lr", s.max_lr);
  put(dict, "lr_warmup_steps", s.lr_warmup_steps);
  put(dict, "num_steps", num_steps_);
  put(dict, "lr_decay_style", s.lr_decay_style);
  put(dict, "lr_decay_steps", s.lr_decay_steps);
  put(dict, "min_lr", s.min_lr);
  put(dict, "start_wd", s.start_wd);
  put(dict, "end_wd", s.end_wd);
  put(dict, "wd_incr_style", s.wd_incr_style);
  put(dict, "wd_incr_steps", s.wd_incr_steps);
  return dict;
}

void OptimizerParamScheduler::load_state_dict(const StateDict& saved) {
  const std::string path = "opt_param_scheduler";
  const auto real = [&](const char* key) { return number(at(saved, key, path), key); };
  const auto whole = [&](const char* key) {
    const double value = real(key);
    require(value >= 0 && value < 0x1p62, key, "is not a valid number of steps");
    return static_cast<int64_t>(value);
  };
  const auto text = [&](const char* key) {
    const auto* const value = at(saved, key, path).get_if<std::string>();
    if (value == nullptr) refuse_key(key, "is not a string");
    return *value;
  };
  SchedulerSettings loaded = settings_;
  loaded.max_lr = real("max_lr");
  loaded.min_lr = real("min_lr");
  loaded.lr_warmup_steps = whole("lr_warmup_steps");
  loaded.lr_decay_steps = whole("lr_decay_steps");
  loaded.lr_decay_style = text("lr_decay_style");
  loaded.start_wd = real("start_wd");
  loaded.end_wd = real("end_wd");
  loaded.wd_incr_steps = whole("wd_incr_steps");
  loaded.wd_incr_style = text("wd_incr_style");
  const int64_t num_steps = whole("num_steps");
  validate(loaded);
  settings_ = std::move(loaded);
  num_steps_ = num_steps;
  step(0);
}

}  // namespace optim

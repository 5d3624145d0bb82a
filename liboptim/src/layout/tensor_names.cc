#include "layout/tensor_names.h"

#include <algorithm>

#include <optim/contents.h>

#include "layout/state_names.h"

namespace optim {
namespace {

constexpr std::string_view kOptimizerSteps[] = {
    "optimizer",       "optimizers",       "optim",           "optimizer_state_dict", "optim_sd",
    "optimizer_state", "optimizer_states", "optim_state_dict"};
constexpr std::string_view kOtherSteps[] = {"lr_scheduler", "lr_schedulers",       "scheduler",
                                            "grad_scaler",  "opt_param_scheduler", "scaler"};
// Names of state that come before the parameter's in Megatron's keys.
constexpr std::string_view kStates[] = {
    "exp_avg",         "exp_avg_sq",     "max_exp_avg_sq", "fp32_param",
    "momentum_buffer", "moment1_buffer", "moment2_buffer", "param"};
constexpr std::string_view kContainers[] = {"model", "model_state_dict", "module", "state_dict"};

template <size_t kCount>
bool is_among(std::string_view step, const std::string_view (&steps)[kCount]) {
  return std::ranges::find(steps, step) != std::end(steps);
}

bool is_number(std::string_view step) {
  return !step.empty() && std::ranges::all_of(step, [](char c) { return c >= '0' && c <= '9'; });
}

std::string joined(std::span<const std::string> steps) {
  std::string text;
  for (const std::string& step : steps) text += (text.empty() ? "" : ".") + step;
  return text;
}

std::string unescaped(std::string step) {
  for (size_t at = 0; (at = step.find('~', at)) != step.npos; ++at) {
    const char next = at + 1 < step.size() ? step[at + 1] : '\0';
    if (next == '0' || next == '1') step.replace(at, 2, next == '0' ? "~" : "/");
  }
  return step;
}

}  // namespace

std::vector<std::string> key_steps(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  std::vector<std::string> steps;
  while (true) {
    const size_t end = key.find(is_pointer ? '/' : '.');
    const std::string step(key.substr(0, end));
    steps.push_back(is_pointer ? unescaped(step) : step);
    if (end == key.npos) return steps;
    key.remove_prefix(end + 1);
  }
}

StateName state_name(const ckpt::TensorEntry& tensor, bool is_megatron) {
  if (is_flat_buffer(tensor) || is_coalesced_buffer(tensor)) {
    return {"", key_steps(tensor.key).back()};
  }
  if (tensor.key.find("/fp32_from_fp16_params/") != tensor.key.npos) return {"", "fp32_param"};
  const std::vector<std::string> steps = key_steps(tensor.key);
  const auto state = std::ranges::find(steps, "state");
  const auto count = static_cast<size_t>(steps.end() - state);
  const bool is_numbered = count == 3 && is_number(state[1]);  // state.0.exp_avg
  const bool is_named = count >= 3 && !is_numbered;
  if (!is_named) return {"", count >= 3 || is_among(steps.back(), kStates) ? steps.back() : ""};
  const std::span<const std::string> rest(state + 1, steps.end());
  if (is_megatron || is_among(rest.front(), kStates)) {
    return {joined(rest.subspan(1)), rest.front()};
  }
  return {joined(rest.first(rest.size() - 1)), rest.back()};
}

std::string weight_name(const ckpt::TensorEntry& tensor) {
  if (!tensor.key.starts_with('/')) return tensor.key;
  const std::vector<std::string> steps = key_steps(tensor.key);
  const bool has_container = steps.size() > 1 && is_among(steps.front(), kContainers);
  return joined(std::span(steps).subspan(has_container ? 1 : 0));
}

std::string_view name(TensorRole role) {
  static constexpr std::string_view kNames[] = {"model", "optimizer_state", "rng_state",
                                                "common_state"};
  return kNames[static_cast<size_t>(role)];
}

TensorRole role_of(const ckpt::TensorEntry& tensor) {
  const auto contains = [&](std::string_view text) {
    return tensor.key.find(text) != tensor.key.npos;
  };
  const bool is_optimizer_file =
      tensor.file.find("layer_wise_optimizer_") != tensor.file.npos || is_coalesced_buffer(tensor);
  if (is_optimizer_file || is_flat_buffer(tensor)) return TensorRole::Optimizer;
  if (contains("rng_state") || contains("rng_tracker")) return TensorRole::Random;
  const std::vector<std::string> steps = key_steps(tensor.key);
  const auto has = [&](const auto& words) {
    return std::ranges::any_of(steps, [&](const auto& step) { return is_among(step, words); });
  };
  if (has(kOptimizerSteps) || is_state(tensor)) return TensorRole::Optimizer;
  return tensor.file == "common.pt" || has(kOtherSteps) ? TensorRole::Other : TensorRole::Model;
}

bool holds_parameters(ckpt::DType dtype) {
  const std::string_view type = ckpt::name(dtype);
  return type.starts_with("float") || type.starts_with("bfloat") || type.starts_with("complex");
}

}  // namespace optim

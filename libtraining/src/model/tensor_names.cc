#include "model/tensor_names.h"

#include <algorithm>

#include <training/contents.h>

#include "model/state_names.h"

namespace optim {
namespace {

constexpr std::string_view kContainers[] = {"model", "model_state_dict", "module", "state_dict"};

template <size_t kCount>
bool is_among(std::string_view step, const std::string_view (&steps)[kCount]) {
  return std::ranges::find(steps, step) != std::end(steps);
}

// Masters of a DistributedOptimizer are called so; elsewhere it is a common word.
bool is_state_or_param(std::string_view step) { return is_state_name(step) || step == "param"; }

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

bool is_number(std::string_view step) {
  return !step.empty() && step.find_first_not_of("0123456789") == step.npos;
}

bool is_state_name(std::string_view step) {
  return is_moment_name(step) || step == "moment1_buffer" || step == "fp32_param";
}

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
  if (is_numbered_master(tensor)) return {"", "fp32_param"};
  const std::vector<std::string> steps = key_steps(tensor.key);
  const auto state = std::ranges::find(steps, "state");
  const auto count = static_cast<size_t>(steps.end() - state);
  const bool is_numbered = count == 3 && is_number(state[1]);  // state.0.exp_avg
  const bool is_named = count >= 3 && !is_numbered;
  if (!is_named) return {"", count >= 3 || is_state_or_param(steps.back()) ? steps.back() : ""};
  const std::span<const std::string> rest(state + 1, steps.end());
  if (is_megatron || is_state_or_param(rest.front())) {
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

KeyKind role_of(const ckpt::TensorEntry& tensor) {
  const bool is_buffer = is_coalesced_buffer(tensor) || is_flat_buffer(tensor);
  return is_buffer ? KeyKind::OptimizerState : kind_of_key(tensor.file, tensor.key);
}

bool holds_parameters(ckpt::DType dtype) {
  const std::string_view type = ckpt::name(dtype);
  return type.starts_with("float") || type.starts_with("bfloat") || type.starts_with("complex");
}

}  // namespace optim

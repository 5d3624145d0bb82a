#include "report/logical_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/inventory.h>
#include <ckpt/key_pattern.h>
#include <ckpt/printed.h>
#include <optim/rule_table.h>
#include <training/filed_state.h>
#include <training/key_kind.h>
#include <training/layer_wise_checkpoint.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>

#include "args/common_state.h"
#include "grid/build_state.h"
#include "model/tensor_names.h"

namespace optim {
namespace {

// --- modules ---

using Steps = std::span<const std::string>;

constexpr std::string_view kContainers[] = {"app", "model", "module", "state_dict",
                                            "model_state_dict"};
// Megatron names states before the parameter; PyTorch names any after it.
bool is_state_of_megatron(const std::string& step) {
  constexpr std::string_view kOthers[] = {"fp32_param", "param", "step"};
  return is_word_of(step, kOthers) ||
         std::ranges::find(all_states(), step, &StateSpec::name) != all_states().end();
}

std::vector<std::string> steps_of(std::string_view key) {
  const std::string folded = ckpt::folded_key(key);
  std::vector<std::string> steps;
  for (size_t start = 0; start <= folded.size();) {
    const size_t end = std::min(folded.find('/', start), folded.size());
    steps.push_back(folded.substr(start, end - start));
    start = end + 1;
  }
  return steps;
}

// The steps of the parameter that optimizer state belongs to; none where it is numbered.
Steps parameter_of_state(Steps steps) {
  const auto state = std::ranges::find(steps, "state");
  Steps rest = steps.subspan(static_cast<size_t>(
      std::min(state - steps.begin() + 1, static_cast<std::ptrdiff_t>(steps.size()))));
  if (rest.empty()) return rest;
  rest = is_state_of_megatron(rest.front()) ? rest.subspan(1) : rest.first(rest.size() - 1);
  return rest.size() == 1 && is_number(rest.front()) ? Steps() : rest;
}

// --- the order in which people count: layers.2 before layers.10 ---

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits that `text` starts with, without zeros in front.
std::string_view take_number(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view digits = text.substr(0, static_cast<size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

}  // namespace

LogicalNames::LogicalNames(const OpenedTraining& checkpoint) {
  const bool is_state = has_training_state(checkpoint);
  std::optional<FiledState> state;
  try {
    if (is_state) state = read_training_state(checkpoint);
  } catch (const ckpt::Error& error) {
    if (error.code() == ckpt::ErrorCode::IoFailure) throw;
    problem_ = error;
  }
  for (LogicalTensor& tensor : list_contents(checkpoint, state ? &*state : nullptr).tensors) {
    std::string key = key_of(tensor);
    if (key.empty()) continue;
    keys_.push_back(std::move(key));
    tensors_.push_back(std::move(tensor));
  }
}

std::vector<LogicalTensor> tensors_of_param(const TrainedParam& param) {
  std::vector<LogicalTensor> tensors;
  const auto add = [&](KeyKind role, std::string_view state, const TensorRef& tensor) {
    tensors.push_back({role, param.info.name, std::string(state), tensor->dtype, tensor->shape,
                       ckpt::count_bytes(*tensor), tensor});
  };
  add(KeyKind::Model, {}, param.weight);
  if (param.master) add(KeyKind::OptimizerState, kMasterState, param.master);
  for (const StateTensor& state : param.states) {
    add(KeyKind::OptimizerState, state.name, state.value);
  }
  return tensors;
}

LogicalTensor stored_tensor(const ckpt::TensorEntry& tensor, bool is_megatron) {
  LogicalTensor logical{role_of(tensor),
                        {},
                        {},
                        tensor.dtype,
                        tensor.shape,
                        ckpt::count_bytes(tensor),
                        TensorRef(TensorRef(), &tensor)};
  if (logical.role == KeyKind::OptimizerState) {
    StateName state = state_name(tensor, is_megatron);
    logical.name = std::move(state.param);
    logical.state = std::move(state.state);
  } else {
    logical.name = weight_name(tensor);
  }
  return logical;
}

void match_state_to_weights(std::span<LogicalTensor* const> tensors) {
  std::set<std::string> weights, containers;
  for (const LogicalTensor* tensor : tensors) {
    if (tensor->role != KeyKind::Model) continue;
    weights.insert(tensor->name);
    const size_t dot = tensor->name.find('.');
    if (dot != tensor->name.npos) containers.insert(tensor->name.substr(0, dot + 1));
  }
  if (containers.size() > 16) return;
  for (LogicalTensor* tensor : tensors) {
    const bool is_open = tensor->role == KeyKind::OptimizerState && !tensor->name.empty() &&
                         !weights.contains(tensor->name);
    if (!is_open) continue;
    for (const std::string& container : containers) {
      if (!weights.contains(container + tensor->name)) continue;
      tensor->name.insert(0, container);
      break;
    }
  }
}

std::string module_of_key(std::string_view key) {
  const std::vector<std::string> all = steps_of(key);
  Steps steps = all;
  if (kind_of_key({}, key) == KeyKind::OptimizerState) {
    steps = parameter_of_state(steps);
    if (steps.empty()) return "optimizer";
  }
  while (steps.size() > 1 && is_word_of(steps.front(), kContainers)) steps = steps.subspan(1);
  const auto number = std::ranges::find_if(steps, [](const auto& step) { return is_number(step); });
  const auto count = static_cast<size_t>(number - steps.begin());
  if (count < steps.size()) return ckpt::joined(steps.first(count + 1), ".");
  return ckpt::joined(steps.first(std::max<size_t>(1, steps.size() - 1)), ".");
}

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view number_a = take_number(a), number_b = take_number(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
      continue;
    }
    if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // 01 and 1
}

ckpt::Inventory logical_inventory(const OpenedTraining& checkpoint) {
  if (has_training_state(checkpoint)) return logical_inventory(read_training_state(checkpoint));
  try {
    ckpt::Inventory inventory = ckpt::plain_inventory(checkpoint);
    join_places(inventory);
    return inventory;
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported || !is_megatron(checkpoint)) throw;
    throw ckpt::Error(ckpt::ErrorCode::Unsupported,
                      {.file = checkpoint.folder().string(), .key = {}},
                      "is " + kind_of_checkpoint(checkpoint) +
                          ", whose names are not known; expected a LayerWise checkpoint or a plain "
                          "state dict",
                      "ckpt-inspect hash without --logical, and diff of two in the same format, "
                      "compare it under stored names");
  }
}

}  // namespace optim

#include "report/module_of_key.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ckpt/key_pattern.h>
#include <optim/rule_table.h>
#include <training/key_kind.h>

#include "model/tensor_names.h"

namespace optim {
namespace {

using Steps = std::span<const std::string>;

constexpr std::string_view kContainers[] = {"app", "model", "module", "state_dict",
                                            "model_state_dict"};
// Megatron names states before the parameter; PyTorch names any after it.
bool is_state_of_megatron(const std::string& step) {
  constexpr std::string_view kOthers[] = {"fp32_param", "param", "step"};
  return std::ranges::find(kOthers, step) != std::end(kOthers) ||
         std::ranges::find(all_states(), step, &StateSpec::name) != all_states().end();
}

template <size_t kCount>
bool is_one_of(const std::string& step, const std::string_view (&words)[kCount]) {
  return std::ranges::find(words, step) != std::end(words);
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

std::string joined(Steps steps) {
  std::string text;
  for (const std::string& step : steps) text += (text.empty() ? "" : ".") + step;
  return text;
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

}  // namespace

std::string module_of_key(std::string_view key) {
  const std::vector<std::string> all = steps_of(key);
  Steps steps = all;
  if (kind_of_key({}, key) == KeyKind::OptimizerState) {
    steps = parameter_of_state(steps);
    if (steps.empty()) return "optimizer";
  }
  while (steps.size() > 1 && is_one_of(steps.front(), kContainers)) steps = steps.subspan(1);
  const auto number = std::ranges::find_if(steps, [](const auto& step) { return is_number(step); });
  const auto count = static_cast<size_t>(number - steps.begin());
  if (count < steps.size()) return joined(steps.first(count + 1));
  return joined(steps.first(std::max<size_t>(1, steps.size() - 1)));
}

}  // namespace optim

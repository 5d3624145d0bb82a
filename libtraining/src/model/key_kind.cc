#include <training/key_kind.h>

#include <algorithm>

#include "model/tensor_names.h"

namespace optim {
namespace {

constexpr std::string_view kModels[] = {"model", "models", "module", "state_dict",
                                        "model_state_dict"};

// States of torch's optimizers and of Adafactor that no parameter is called like.
constexpr std::string_view kStates[] = {"exp_avg_sq_row", "exp_avg_sq_col", "max_exp_avg_sq",
                                        "square_avg",     "acc_delta",      "grad_avg",
                                        "exp_inf"};
// Others of theirs, which have a meaning below "state" alone.
constexpr std::string_view kStatesBelowState[] = {
    "step", "sum", "ax", "mu", "eta", "prev", "step_size", "row_var", "col_var", "RMS", "variance"};
constexpr std::string_view kAverages[] = {"ema", "EMA"};
constexpr std::string_view kProgress[] = {"loss",  "metric", "accuracy",  "epoch",  "step",
                                          "steps", "tokens", "iteration", "samples"};
constexpr std::string_view kRandom[] = {"rng", "random_state", "numpy_random_seed"};

template <size_t kCount>
bool is_word_of(std::string_view step, const std::string_view (&steps)[kCount]) {
  return std::ranges::find(steps, step) != std::end(steps);
}

// A word of "model_ema", "best_loss".
template <size_t kCount>
bool has_word(std::string_view step, const std::string_view (&words)[kCount]) {
  while (!step.empty()) {
    const size_t end = std::min(step.find('_'), step.size());
    if (is_word_of(step.substr(0, end), words)) return true;
    step.remove_prefix(std::min(end + 1, step.size()));
  }
  return false;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

bool is_state_step(std::string_view step) { return step == "state" || step == "param_groups"; }

// A pointer's steps have dots in them; in other keys dots and slashes separate.
std::string_view take_step(std::string_view& key, bool is_pointer) {
  const auto ends = [=](char c) { return c == '/' || (c == '.' && !is_pointer); };
  const auto end = static_cast<size_t>(std::ranges::find_if(key, ends) - key.begin());
  const std::string_view step = key.substr(0, end);
  key.remove_prefix(std::min(end + 1, key.size()));
  return step;
}

std::string_view last_step(std::string_view key) { return key.substr(key.find_last_of("./") + 1); }

bool is_state_of_torch(std::string_view step) {
  return is_state_name(step) || is_word_of(step, kStates) || is_word_of(step, kStatesBelowState);
}

bool names_an_optimizer(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  bool is_in_model = false;
  for (bool is_first = true; !key.empty(); is_first = false) {
    const std::string_view step = take_step(key, is_pointer);
    std::string_view rest = key;
    const std::string_view next = take_step(rest, is_pointer);
    if (key.empty()) return false;  // the last step names a tensor
    if (is_optimizer_step(step) && (!is_in_model || is_state_step(next))) return true;
    if (is_first && step == "state" && is_pointer && is_number(next)) return true;
    if (is_first && step == "state" && is_state_of_torch(last_step(key))) return true;
    if (is_first && (is_state_name(step) || is_word_of(step, kStates)))
      return true;  // by their names
    is_in_model = is_in_model || is_word_of(step, kModels);
  }
  return false;
}

// "/ema/fc.weight", "/state_dict/model_ema.fc.weight", "model_ema.fc.weight".
bool names_an_average(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  std::string_view step = take_step(key, false);
  while (is_word_of(step, kModels) && !key.empty()) step = take_step(key, false);
  return !key.empty() && has_word(step, kAverages);
}

bool names_random_state(std::string_view key) {
  if (contains(key, "rng_state") || contains(key, "rng_tracker")) return true;
  if (contains(key, "manual_seed")) return true;  // Accelerate
  while (!key.empty()) {
    if (is_word_of(take_step(key, false), kRandom)) return true;
  }
  return false;
}

// "/loss", "ntokens_seen": not below anything.
bool names_progress(std::string_view key) {
  if (key.starts_with('/')) key.remove_prefix(1);
  return key.find_first_of("./") == key.npos && (has_word(key, kProgress) || key == "ntokens_seen");
}

}  // namespace

std::string_view name(KeyKind kind) {
  static constexpr std::string_view kNames[] = {"model",        "optimizer_state", "rng_state",
                                                "common_state", "average",         "progress"};
  return kNames[static_cast<size_t>(kind)];
}

KeyKind kind_of_key(std::string_view file, std::string_view key) {
  const bool is_optimizer_file =
      contains(file, "layer_wise_optimizer_") || contains(file, "distrib_optim");
  if (is_optimizer_file || names_an_optimizer(key)) return KeyKind::OptimizerState;
  if (names_random_state(key)) return KeyKind::RngState;
  if (file == "common.pt") return KeyKind::CommonState;
  if (names_an_average(key)) return KeyKind::Average;
  return names_progress(key) ? KeyKind::Progress : KeyKind::Model;
}

}  // namespace optim

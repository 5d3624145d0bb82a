#include <training/key_kind.h>

#include <algorithm>

#include "model/tensor_names.h"

namespace optim {
namespace {

constexpr std::string_view kModels[] = {"model", "models", "module", "state_dict",
                                        "model_state_dict"};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

bool is_state_step(std::string_view step) { return step == "state" || step == "param_groups"; }

// A pointer's steps have dots in them; in other keys dots and slashes separate.
std::string_view take_step(std::string_view& key, bool is_pointer) {
  const size_t end = std::min(key.find_first_of(is_pointer ? "/" : "./"), key.size());
  const std::string_view step = key.substr(0, end);
  key.remove_prefix(std::min(end + 1, key.size()));
  return step;
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
    if (is_first && is_state_name(step)) return true;  // a file of states by their names
    is_in_model = is_in_model || std::ranges::find(kModels, step) != std::end(kModels);
  }
  return false;
}

}  // namespace

std::string_view name(KeyKind kind) {
  static constexpr std::string_view kNames[] = {"model", "optimizer_state", "rng_state",
                                                "common_state"};
  return kNames[static_cast<size_t>(kind)];
}

KeyKind kind_of_key(std::string_view file, std::string_view key) {
  const bool is_optimizer_file =
      contains(file, "layer_wise_optimizer_") || contains(file, "distrib_optim");
  if (is_optimizer_file || names_an_optimizer(key)) return KeyKind::OptimizerState;
  if (contains(key, "rng_state") || contains(key, "rng_tracker")) return KeyKind::RngState;
  return file == "common.pt" ? KeyKind::CommonState : KeyKind::Model;
}

}  // namespace optim

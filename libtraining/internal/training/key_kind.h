#pragma once

#include <cstdint>
#include <string_view>

namespace optim {

// What a stored key belongs to, as far as its name says.
enum class KeyKind : uint8_t {
  Model,
  OptimizerState,
  RngState,
  CommonState,
  Average,   // a moving average of the model, beside it: "ema"
  Progress,  // a number at the root that tells how far a run was: its loss, its steps
};
std::string_view name(KeyKind kind);  // "model", "optimizer_state", ...

// By the names that Megatron, PyTorch and the usual training loops give: "/optimizer/state/0/step",
// "chained_1.optimizer.state.exp_avg.NAME", "app.optim.state.NAME.exp_avg", "/optimizer_states/0/"
// (Lightning), "/state/0/exp_avg" and "exp_avg.NAME" (files of an optimizer alone), all of
// layer_wise_optimizer_N.pt and distrib_optim.pt, and "state.NAME.exp_avg" (torchtitan). A
// parameter below "model" or "state_dict" is the model's whatever its name. `file` is empty where
// keys are unique without it.
KeyKind kind_of_key(std::string_view file, std::string_view key);

}  // namespace optim

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/value.h>
#include <training/filing.h>
#include <training/opened_training.h>
#include <training/size_change.h>
#include <training/training_state.h>

// A run's training arguments, and what they say of the grid of ranks and of the model.
namespace optim {

// The Dict of the argparse.Namespace under "args" of a common state or rank file.
std::optional<ckpt::Value> args_of(const ckpt::Value& root);

// The training arguments that a Megatron checkpoint states, as far as they are there: of `torch`
// the first model_optim_rng.pt's, of torch_dist the common state's. Points into the checkpoint;
// everybody asks OpenedTraining for it.
class RunArgs {
 public:
  explicit RunArgs(const OpenedTraining& checkpoint);

  bool are_there() const { return args_.has_value(); }
  const std::optional<ckpt::Value>& args() const { return args_; }
  const std::string& file() const { return file_; }  // that states them
  bool is_true(std::string_view name) const;
  std::string text(std::string_view name) const;  // escaped; empty where it is not a text
  bool is_false(std::string_view name) const;     // not where it is absent or something else
  // A positive number; 1 where it is absent, None or something else.
  uint32_t size(std::string_view name) const;

 private:
  std::string file_;
  std::optional<ckpt::Value> args_;
};

inline constexpr std::string_view kLayerWiseArg = "use_layer_wise_distributed_optimizer";

// Fills grid and facts. `args`: the attributes of the Namespace in `file`. Throws Corrupt for sizes
// that are none, and Unsupported, by the name of the argument, for what no layout handles.
void read_args(const ckpt::Value& args, const std::string& file, TrainingState& state);

// All sizes of a checkpoint, as its args state them. Throws Unsupported where it has none.
SizeChange sizes_of(const OpenedTraining& checkpoint);

// True for an attribute that is there and True.
bool is_true(const ckpt::Value& args, std::string_view name);

// The flag that says that linear units are gated, of those that Megatron-LM's
// core_transformer_config_from_args asks (core 0.18-dev); nullopt: none does.
std::optional<std::string_view> stated_gating(const ckpt::Value& args);

// What releases() shows. For tests that add one.
std::vector<const Release*>& release_table();

}  // namespace optim

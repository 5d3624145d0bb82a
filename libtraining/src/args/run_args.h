#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/value.h>
#include <training/opened_training.h>

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

// What Megatron Bridge writes beside a checkpoint, run_config.yaml; empty where there is none.
std::string bridge_config(const OpenedTraining& checkpoint);

// Whether Megatron Bridge wrote it: it has a configuration of Bridge's instead of args.
bool is_of_bridge(const OpenedTraining& checkpoint);

}  // namespace optim

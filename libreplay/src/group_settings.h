#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/value.h>
#include <optim/optimizer.h>
#include <optim/optimizer_param_scheduler.h>
#include <optim/rule_config.h>
#include <replay/replay.h>
#include <training/training_state.h>

namespace optim {

// ReplayOptions::overrides, understood: arguments of Megatron that count in place of those that the
// checkpoint's args, groups and schedule say.
class Overrides {
 public:
  Overrides() = default;
  // Throws InvalidArgument for names that are not known and values that are no scalars.
  explicit Overrides(const std::map<std::string, std::string>& given);

  bool has(std::string_view argument) const { return given_.contains(std::string(argument)); }

  // Into the args of the state. Throws InvalidArgument, with the argument, for what args cannot
  // be.
  void apply_to_args(TrainingState& state) const;
  // From args, after apply_to_args(). `increment`: the global batch size. What is not named stays.
  void apply_to_schedule(const ckpt::Value& args, int64_t increment,
                         SchedulerSettings& settings) const;

  // What is no argument of Megatron's, but decides how the checkpoint's run rounded.
  std::optional<EmergingOptimizers> era() const;
  std::optional<AdamArithmetic> adam_arithmetic() const;

 private:
  std::string text_of(std::string_view argument) const;  // empty: not given

  std::map<std::string, std::string> given_;  // JSON
};

// The hint for a checkpoint that is read, but not replayed.
inline constexpr const char* kWorksOnUnreplayed =
    "ckpt-inspect, ckpt-convert and reshard work on this checkpoint";
// With that hint where `code` is Unsupported.
[[noreturn]] void refuse_checkpoint(ckpt::ErrorCode code, const std::string& key,
                                    const std::string& problem);

// A group of a checkpoint as it steps, without parameters: its fields, and what `config` (from the
// args) says where groups say nothing. Throws Corrupt, Unsupported with the field.
struct GroupSource {
  ckpt::Value fields;
  uint32_t optimizer = 0;  // place in the chain
  StepLayout step_layout = StepLayout::None;
  EmergingOptimizers era = EmergingOptimizers::V0_3;
  const Overrides& overrides;
};
OptimizerGroup restore_group(const GroupSource& source, const OptimizerConfig& config,
                             const ckpt::Value& args);

// A number of a Dict. Throws Corrupt with the key when it is absent or no number.
double number_field(const ckpt::Value& dict, const std::string& key);
int64_t whole_field(const ckpt::Value& dict, const std::string& key);

}  // namespace optim

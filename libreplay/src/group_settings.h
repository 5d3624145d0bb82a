#pragma once

#include <string>

#include <ckpt/error.h>
#include <ckpt/value.h>
#include <optim/optimizer.h>
#include <training/training_state.h>

#include "overrides.h"

namespace optim {

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

#pragma once

#include <CLI/CLI.hpp>

#include <common/option_values.h>
#include <optim/rule_config.h>

namespace tools::step_replay {

inline void declare_era(CLI::App& app, optim::EmergingOptimizers& era) {
  using enum optim::EmergingOptimizers;
  add_choice<optim::EmergingOptimizers>(app, "--emerging-optimizers", era,
                                        {{"0.2", V0_2}, {"0.3", V0_3}})
      ->description("Release whose SOAP and adaptive Muon are computed (default: 0.3)");
}

}  // namespace tools::step_replay

#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include <optim/rule_config.h>
#include <replay/comparison.h>

#include "common/option_values.h"
#include "common/run_tool.h"

namespace tools::step_replay {

// `arguments`: the whole command line, with which --spawn starts the other processes.
Command make_run_command(std::vector<std::string> arguments);
Command make_check_command();
Command make_record_command();

// --atol and --rtol: one of them alone leaves the other at 0.
struct ToleranceOptions {
  std::optional<double> atol, rtol;

  void declare(CLI::App& app) {
    add_value(app, "--atol X", atol, "Allow |a - b| <= ATOL + RTOL |b| instead of the defaults")
        ->check(kTolerance);
    add_value(app, "--rtol Y", rtol, "See --atol; --atol 0 asks for equal numbers")
        ->check(kTolerance);
  }

  std::optional<optim::Tolerance> tolerance() const {
    if (!atol && !rtol) return std::nullopt;
    return optim::Tolerance{atol.value_or(0), rtol.value_or(0)};
  }
};

inline void declare_era(CLI::App& app, optim::EmergingOptimizers& era) {
  using enum optim::EmergingOptimizers;
  add_choice<optim::EmergingOptimizers>(app, "--emerging-optimizers", era,
                                        {{"0.2", V0_2}, {"0.3", V0_3}})
      ->description("Release whose SOAP and adaptive Muon are computed (default: 0.3)");
}

}  // namespace tools::step_replay

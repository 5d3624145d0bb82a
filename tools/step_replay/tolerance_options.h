#pragma once

#include <optional>

#include <common/option_values.h>
#include <replay/comparison.h>
#include <CLI/CLI.hpp>

namespace tools::step_replay {

// --atol and --rtol: one of them alone leaves the other at 0.
struct ToleranceOptions {
  std::optional<double> atol, rtol;

  void declare(CLI::App& app) {
    app.add_option("--atol", atol, "Allow |a - b| <= ATOL + RTOL |b| instead of the defaults")
        ->check(kTolerance)
        ->option_text("X");
    app.add_option("--rtol", rtol, "See --atol; --atol 0 asks for equal numbers")
        ->check(kTolerance)
        ->option_text("Y");
  }

  std::optional<optim::Tolerance> tolerance() const {
    if (!atol && !rtol) return std::nullopt;
    return optim::Tolerance{atol.value_or(0), rtol.value_or(0)};
  }
};

}  // namespace tools::step_replay

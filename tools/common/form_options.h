#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/cast.h>
#include <training/convert.h>
#include <training/filing.h>

namespace CLI {
class App;
}

namespace tools {

// How the destination files the state of optimizers: options that ckpt-convert and reshard have in
// common.
struct FormOptions {
  optim::FilingChange form;

  void declare(CLI::App& app);
};

// --dtype.
void add_types(CLI::App& app, std::vector<ckpt::TypeRule>& types);

// Parallel sizes of a destination, and what goes with them: options that ckpt-convert and reshard
// have in common.
struct SizeOptions {
  optim::SizeChange sizes;
  std::string sizes_from, model_rules;
  optim::RngPolicy rng = optim::RngPolicy::Seed;

  void declare(CLI::App& app);
  // What was asked for. Throws InvalidArgument for --sizes-from beside a size.
  optim::SizeChange change() const;
};

// "TP 2  PP 2  CP 1  DP 2", and with experts "EP 4  ETP 1".
std::string grid_text(const optim::RunGrid& grid, bool has_experts);

}  // namespace tools

#pragma once

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

}  // namespace tools

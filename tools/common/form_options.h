#pragma once

#include <training/optimizer_form.h>

namespace CLI {
class App;
}

namespace tools {

// How the destination files the state of optimizers: options that ckpt-convert and reshard have in
// common.
struct FormOptions {
  optim::FormChange form;

  void declare(CLI::App& app);
};

}  // namespace tools

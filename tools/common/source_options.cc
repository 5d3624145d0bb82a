#include "common/source_options.h"

#include <common/option_values.h>

namespace tools {

void SourceOptions::declare(CLI::App& app, const std::string& name) {
  app.add_option(name, path,
                 "Checkpoint root, iteration or DCP folder, torch.save or safetensors file")
      ->required()
      ->option_text(" ");
  app.add_option("--iteration", iteration,
                 "Iteration of a checkpoint root (default: what the tracker names)")
      ->check(kCount)
      ->option_text("N");
  add_follow_links(app, limits);
}

ckpt::Checkpoint SourceOptions::open() const {
  return ckpt::Checkpoint::open(path, {.iteration = iteration, .limits = limits});
}

}  // namespace tools

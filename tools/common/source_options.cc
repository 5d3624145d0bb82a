#include "common/source_options.h"

#include <CLI/CLI.hpp>

namespace tools {

void SourceOptions::declare(CLI::App& app, const std::string& name) {
  app.add_option(name, path,
                 "Checkpoint root, iteration folder, torch_dist or DCP folder, torch.save file, "
                 ".safetensors file or index")
      ->required()
      ->option_text(" ");
  app.add_option("--iteration", iteration,
                 "Iteration of a checkpoint root (default: what the tracker names)")
      ->option_text("N");
}

ckpt::Checkpoint SourceOptions::open() const {
  return ckpt::Checkpoint::open(path, {.iteration = iteration, .limits = {}});
}

}  // namespace tools

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ckpt/checkpoint.h>

namespace CLI {
class App;
}

namespace tools {

// A checkpoint to read: the positional PATH (or another name), --iteration and --follow-links.
struct SourceOptions {
  std::string path;
  std::optional<int64_t> iteration;
  ckpt::Limits limits;

  void declare(CLI::App& app, const std::string& name = "PATH");
  ckpt::Checkpoint open() const;
};

}  // namespace tools

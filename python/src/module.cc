// shardwise._core.
#include "module.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <ckpt/folder.h>

NB_MODULE(_core, module) {
  // One for each checkpoint that is opened, so that a later open() sees what is there by then.
  const auto remote_places = [] {
    return ckpt::remote_folder([](const char* name) -> std::optional<std::string> {
      const char* const value = std::getenv(name);
      return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    });
  };
  for (const char* scheme : {"s3", "https", "http"}) ckpt::add_source(scheme, remote_places);
  module.attr("__version__") = SHARDWISE_VERSION;
  python::add_errors(module);
  python::add_tensors(module);
  auto checkpoint = python::add_checkpoint(module);
  python::add_training(module, checkpoint);
  python::add_commands(module);
}

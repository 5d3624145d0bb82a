// shardwise._core.
#include "module.h"

NB_MODULE(_core, module) {
  module.attr("__version__") = SHARDWISE_VERSION;
  python::add_errors(module);
  python::add_tensors(module);
  auto checkpoint = python::add_checkpoint(module);
  python::add_training(module, checkpoint);
  python::add_commands(module);
}

// shardwise._core.
#include "module.h"

NB_MODULE(_core, module) {
  module.attr("__version__") = SHARDWISE_VERSION;
  python::add_errors(module);
  python::add_tensors(module);
  python::add_checkpoint(module);
}

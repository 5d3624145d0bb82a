#pragma once

#include <common/run_tool.h>

namespace tools {

// The programs but step-replay, which needs LibTorch: one binary has them all, and so has the
// Python module.
Program inspect_program();
Program convert_program();
Program reshard_program();

// Of ckpt-convert: models out of several.
std::vector<Command> combine_commands();

}  // namespace tools

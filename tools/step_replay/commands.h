#pragma once

#include <string>
#include <vector>

#include <common/run_tool.h>

namespace tools::step_replay {

// `arguments`: the whole command line, with which --spawn starts the other processes.
Command make_run_command(std::vector<std::string> arguments);
Command make_check_command();
Command make_record_command();

}  // namespace tools::step_replay

#pragma once

#include <vector>

#include <common/console.h>
#include <common/json.h>
#include <replay/replay.h>
#include <step_replay/junit.h>

namespace tools::step_replay {

// What `run` prints: docs/schema/replay_run.json, the same as text, and a case of each kind of
// state.
nlohmann::json report_json(const optim::ReplayOptions& options, const optim::ReplayReport& report);
void print_report(const optim::ReplayOptions& options, const optim::ReplayReport& report,
                  Console& console);
std::vector<JunitCase> junit_cases(const optim::ReplayReport& report);

}  // namespace tools::step_replay

#pragma once

#include <common/console.h>
#include <common/json.h>
#include <replay/bisect.h>

namespace tools::step_replay {

// What `run --bisect` prints: docs/schema/replay_bisect.json, and the same as text.
nlohmann::json bisect_json(const optim::BisectReport& report);
void print_bisect(const optim::BisectReport& report, Console& console);

}  // namespace tools::step_replay

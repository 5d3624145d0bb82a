#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <common/console.h>
#include <common/json.h>
#include <common/junit.h>

#include <replay/bisect.h>
#include <replay/comparison.h>
#include <replay/replay.h>

namespace tools::step_replay {

// JSON has no infinity: the largest double stands for it.
inline double finite(double value) { return std::min(value, std::numeric_limits<double>::max()); }

inline nlohmann::json difference_json(const std::string& tensor, const optim::Difference& worst) {
  return {{"tensor", json_text(tensor)},
          {"max_abs", finite(worst.max_abs)},
          {"max_rel", finite(worst.max_rel)},
          {"max_scaled", finite(worst.max_scaled)},
          {"max_ulp", finite(worst.max_ulp)}};
}

// What `run` prints: docs/schema/replay_run.json, the same as text, and a case of each kind of
// state.
nlohmann::json report_json(const optim::ReplayOptions& options, const optim::ReplayReport& report);
void print_report(const optim::ReplayOptions& options, const optim::ReplayReport& report,
                  Console& console);
std::vector<JunitCase> junit_cases(const optim::ReplayReport& report);

// What `run --bisect` prints: docs/schema/replay_bisect.json, and the same as text.
nlohmann::json bisect_json(const optim::BisectReport& report);
void print_bisect(const optim::BisectReport& report, Console& console);

}  // namespace tools::step_replay

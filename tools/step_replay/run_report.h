#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <common/console.h>
#include <common/json.h>
#include <CLI/CLI.hpp>

#include <replay/bisect.h>
#include <replay/comparison.h>
#include <replay/replay.h>

namespace tools::step_replay {

// JUnit's XML, as continuous integration reads it.
struct JunitCase {
  std::string name;
  std::string failure = {};  // one line; empty: it passed
  std::string details = {};  // of a failure
};
struct JunitSuite {
  std::string name;
  std::vector<JunitCase> cases;
};

// One document. Names are escaped; what XML cannot hold stands as ckpt::escaped() writes it.
std::string junit_text(const JunitSuite& suite);

inline void declare_junit(CLI::App& app, std::string& file) {
  app.add_option("--junit", file, "Write the outcome as JUnit's XML, for continuous integration")
      ->option_text("FILE");
}

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

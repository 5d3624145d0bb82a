#include <replay/bisect.h>

#include <utility>

#include "rules/refuse_key.h"

namespace optim {
namespace {

using Arguments = std::map<std::string, std::string>;

void check(const ReplayOptions& options, const Arguments& other) {
  const std::string search = "a search for what explains a difference ";
  if (options.expect.empty()) refuse_key({}, search + "needs --expect");
  if (!options.output.empty()) refuse_key({}, search + "writes no output");
  if (options.processes.rank.size > 1) refuse_key({}, search + "runs in one process");
  if (other.empty()) refuse_key({}, "the other configuration has no arguments");
}

BisectTrial attempt(ReplayOptions options, const Arguments& added) {
  BisectTrial trial;
  for (const auto& [argument, value] : added) {
    options.overrides[argument] = value;
    trial.arguments.push_back(argument);
  }
  const ReplayReport report = replay(options);
  trial.passed = report.passed;
  trial.identical = !report.divergence;
  return trial;
}

// 2: identical, 1: within tolerances, 0: neither.
int rank_of(const BisectTrial& trial) { return trial.identical ? 2 : trial.passed ? 1 : 0; }

}  // namespace

BisectReport bisect(const ReplayOptions& options, const Arguments& other) {
  check(options, other);
  BisectReport report;
  report.trials.push_back(attempt(options, {}));
  report.trials.push_back(attempt(options, other));
  const int reached = rank_of(report.trials[1]);
  report.is_explained = reached > rank_of(report.trials[0]);
  if (!report.is_explained) return report;
  Arguments needed = other;
  for (const auto& [argument, value] : other) {
    if (needed.size() == 1) break;  // with none it is worse
    Arguments without = needed;
    without.erase(argument);
    report.trials.push_back(attempt(options, without));
    if (rank_of(report.trials.back()) >= reached) needed = std::move(without);
  }
  for (const auto& [argument, value] : needed) report.arguments.push_back(argument);
  return report;
}

}  // namespace optim

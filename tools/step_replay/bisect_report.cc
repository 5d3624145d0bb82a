#include <step_replay/bisect_report.h>

#include <string>
#include <vector>

#include <ckpt/error.h>
#include <common/table.h>

namespace tools::step_replay {
namespace {

std::string list(const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& argument : arguments) {
    text += (text.empty() ? "" : ", ") + ckpt::escaped(argument);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

nlohmann::json bisect_json(const optim::BisectReport& report) {
  nlohmann::json document = json_document();
  document["trials"] = nlohmann::json::array();
  for (const optim::BisectTrial& trial : report.trials) {
    document["trials"].push_back(
        {{"arguments", trial.arguments}, {"passed", trial.passed}, {"identical", trial.identical}});
  }
  document["explained"] = report.is_explained;
  document["arguments"] = report.arguments;
  return document;
}

void print_bisect(const optim::BisectReport& report, Console& console) {
  Table table({{"result"}, {.title = "arguments that counted", .can_shorten = true}});
  for (const optim::BisectTrial& trial : report.trials) {
    const bool passed = trial.passed;
    table.add_row({{trial.identical ? "identical"
                    : passed        ? "passed"
                                    : "FAILED",
                    passed ? Paint::Green : Paint::Red},
                   {list(trial.arguments)}});
  }
  table.print(console);
  console.print_text(report.is_explained
                         ? "explained by " + list(report.arguments)
                         : "not explained: all of them give what none of them gives");
}

}  // namespace tools::step_replay

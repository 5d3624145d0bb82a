
#include <ckpt/error.h>
#include <common/json.h>
#include <common/table.h>
#include <common/text.h>
#include <common/whole_file.h>
#include <replay/trace.h>
#include <step_replay/commands.h>
#include <step_replay/run_report.h>

namespace tools::step_replay {
namespace {

using nlohmann::json;

struct CheckOptions {
  std::vector<std::string> traces;
  ToleranceOptions tolerance;
  bool from_recorded_state = false;
  std::string junit;
  optim::EmergingOptimizers era = optim::EmergingOptimizers::V0_3;

  void declare(CLI::App& app) {
    add_value(app, "TRACE ...", traces, "NAME.json, with NAME.safetensors beside it")->required();
    tolerance.declare(app);
    app.add_flag("--from-recorded-state", from_recorded_state,
                 "Start each step from the state recorded after the one before");
    declare_junit(app, junit);
    declare_era(app, era);
  }
};

json trace_json(const optim::TraceReport& report) {
  json worst = difference_json(report.worst.tensor, report.worst.difference);
  worst["step"] = report.worst.step;
  return {{"name", json_text(report.name)},
          {"passed", report.passed},
          {"steps", report.steps},
          {"worst", std::move(worst)}};
}

void print_reports(const std::vector<optim::TraceReport>& reports, Console& console) {
  Table table({{.title = "trace", .can_shorten = true},
               {"result"},
               {"steps", Align::Right},
               {.title = "worst tensor", .can_shorten = true},
               {.title = "step", .align = Align::Right, .drop_order = 3},
               {"max abs", Align::Right},
               {.title = "max scaled", .align = Align::Right, .drop_order = 2},
               {.title = "max scaled ulp", .align = Align::Right, .drop_order = 1}});
  for (const optim::TraceReport& report : reports) {
    const optim::Difference& worst = report.worst.difference;
    table.add_row({{ckpt::escaped(report.name)},
                   {report.passed ? "passed" : "FAILED", report.passed ? Paint::Green : Paint::Red},
                   {std::to_string(report.steps)},
                   {ckpt::escaped(report.worst.tensor)},
                   {std::to_string(report.worst.step)},
                   {short_number_text(worst.max_abs)},
                   {short_number_text(worst.max_scaled)},
                   {short_number_text(worst.max_ulp)}});
  }
  table.print(console);
}

std::vector<JunitCase> junit_cases_of_traces(const std::vector<optim::TraceReport>& reports) {
  std::vector<JunitCase> cases;
  for (const optim::TraceReport& report : reports) {
    const optim::NamedDifference& worst = report.worst;
    cases.push_back({.name = report.name});
    if (report.passed) continue;
    cases.back().failure = "'" + worst.tensor + "' differs after step " +
                           std::to_string(worst.step) + " by up to " +
                           short_number_text(worst.difference.max_abs);
  }
  return cases;
}

int check(const CheckOptions& options, Console& console) {
  const optim::CheckOptions how = {options.tolerance.tolerance(), options.from_recorded_state,
                                   options.era};
  if (!options.junit.empty()) refuse_output(options.junit, options.traces.front());
  for (const std::string& trace : options.traces) optim::validate_trace(trace, how);
  std::vector<optim::TraceReport> reports;
  bool all_passed = true;
  for (const std::string& trace : options.traces) {
    reports.push_back(optim::check_trace(trace, how));
    all_passed = all_passed && reports.back().passed;
  }
  if (console.options().json) {
    json document = json_document();
    document["traces"] = json_list(reports, trace_json);
    print_json(console, document);
  } else {
    print_reports(reports, console);
  }
  if (!options.junit.empty()) {
    write_whole_file(options.junit,
                     junit_text({"step-replay check", junit_cases_of_traces(reports)}), true);
  }
  return all_passed ? 0 : 1;
}

}  // namespace

Command make_check_command() {
  return make_command<CheckOptions>(
      {.name = "check",
       .description = "Replays recorded optimizer traces and compares every parameter and state "
                      "after each step.",
       .examples = {"step-replay check traces/adamw.json",
                    "step-replay check traces/muon_*.json --json",
                    "step-replay check traces/muon_l2.json --atol 1e-6 --rtol 1e-5"},
       .exit_1 = "a trace is outside its tolerance"},
      check);
}

}  // namespace tools::step_replay

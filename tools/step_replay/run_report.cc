#include <step_replay/run_report.h>

#include <ostream>
#include <utility>

#include <common/table.h>
#include <common/text.h>

#include <ckpt/error.h>

namespace tools::step_replay {
namespace {

using nlohmann::json;

bool is_number(uint64_t ulp_max) { return ulp_max < std::numeric_limits<uint64_t>::max(); }

json part_json(const optim::PartOfStep& part) {
  json row = {{"part", name(part.part)}, {"tensors", part.tensors}};
  if (part.tensors > 0) row["tensor"] = json_text(part.tensor);
  if (part.ours) row["ours"] = finite(*part.ours);
  if (part.recorded) row["recorded"] = finite(*part.recorded);
  return row;
}

json divergence_json(const optim::Divergence& divergence) {
  json found = difference_json(divergence.tensor, divergence.difference);
  found["kind"] = divergence.kind;
  found["iteration"] = divergence.iteration;
  found["cosine"] = divergence.spread.cosine;
  found["ulps"] = json_list(divergence.spread.ulps, [](const optim::Spread::Row& row) {
    json ulps = {{"elements", row.elements}};
    if (is_number(row.ulp_max)) ulps["ulp_max"] = row.ulp_max;
    return ulps;
  });
  if (divergence.parts.empty()) {
    found["why_no_parts"] = divergence.why_no_parts;
    return found;
  }
  found["parts"] = json_list(divergence.parts, part_json);
  if (divergence.first) found["first_part"] = name(*divergence.first);
  found["is_rounding"] = divergence.is_rounding;
  return found;
}

json comparison_json(const optim::ReplayOptions& options, const optim::ReplayReport& report) {
  json kinds = json_list(report.compared, [](const optim::ComparedKind& kind) -> json {
    return {{"kind", kind.kind},
            {"tensors", kind.tensors},
            {"equal", kind.equal},
            {"passed", kind.passed},
            {"worst", difference_json(kind.worst_tensor, kind.worst)}};
  });
  json compared = {{"path", json_text(options.expect.string())},
                   {"passed", report.passed},
                   {"identical", !report.divergence},
                   {"kinds", std::move(kinds)}};
  if (report.divergence) compared["divergence"] = divergence_json(*report.divergence);
  return compared;
}

void print_steps(const optim::ReplayReport& report, Console& console) {
  const bool is_scaled = std::ranges::any_of(
      report.steps, [](const optim::ReplayedStep& step) { return step.loss_scale != 1; });
  std::vector<Column> columns = {{"iteration", Align::Right},
                                 {"lr", Align::Right},
                                 {"grad norm", Align::Right},
                                 {"clipped by", Align::Right},
                                 {"zeros", Align::Right}};
  if (is_scaled) columns.push_back({"loss scale", Align::Right});
  Table table(std::move(columns));
  int64_t iteration = report.first_iteration;
  for (const optim::ReplayedStep& step : report.steps) {
    const bool is_known = !step.was_skipped;
    std::vector<Cell> row = {{std::to_string(++iteration)},
                             {number_text(step.lr)},
                             {is_known ? number_text(step.grad_norm) : "skipped"},
                             {is_known ? number_text(step.grad_norm_used) : ""},
                             {is_known ? std::to_string(step.num_zeros) : ""}};
    if (is_scaled) row.push_back({number_text(step.loss_scale)});
    table.add_row(std::move(row));
  }
  table.print(console);
}

constexpr size_t kSpreadRowsPerLine = 2;  // so that lines fit 60 columns

std::string spread_text(const optim::Spread& spread) {
  std::string text;
  size_t count = 0;
  for (const optim::Spread::Row& row : spread.ulps) {
    if (count != 0) text += count % kSpreadRowsPerLine == 0 ? "\nelements: " : ", ";
    ++count;
    text += std::to_string(row.elements);
    if (!is_number(row.ulp_max)) {
      text += " not comparable";
    } else if (row.ulp_max == 0) {
      text += " equal";
    } else {
      text += (row.ulp_max > 2 ? " up to " : " by ") + std::to_string(row.ulp_max) + " ulp";
    }
  }
  return text;
}

std::string first_difference(const optim::Divergence& divergence) {
  return "first difference after iteration " + std::to_string(divergence.iteration) + ": " +
         divergence.kind + " of " + ckpt::escaped(divergence.tensor);
}

std::string sizes_of_difference(const optim::Divergence& divergence) {
  return "max abs " + short_number_text(divergence.difference.max_abs) + ", max rel " +
         short_number_text(divergence.difference.max_rel) + ", 1 - cosine " +
         short_number_text(1 - divergence.spread.cosine) +
         "\nelements: " + spread_text(divergence.spread);
}

std::string first_part(const optim::Divergence& divergence) {
  if (divergence.parts.empty()) return divergence.why_no_parts;
  if (!divergence.first) return "no part of the step differs";
  return "the part that differs first: " + std::string(name(*divergence.first)) +
         (divergence.is_rounding ? ", by its rounding alone" : "");
}

void print_parts(const optim::Divergence& divergence, Console& console) {
  Table table({{"part"},
               {"parameters", Align::Right},
               {"ours", Align::Right},
               {"recorded", Align::Right},
               {.title = "first parameter", .can_shorten = true}});
  const auto shown = [](const std::optional<double>& number) {
    return number ? short_number_text(*number) : "";
  };
  for (const optim::PartOfStep& part : divergence.parts) {
    table.add_row({{std::string(name(part.part))},
                   {std::to_string(part.tensors)},
                   {shown(part.ours)},
                   {shown(part.recorded)},
                   {ckpt::escaped(part.tensor)}});
  }
  table.print(console);
}

// What the rows of a comparison come to, where not all bits are the same.
std::string verdict(const optim::ReplayOptions& options, const optim::ReplayReport& report) {
  const std::string bounds =
      options.tolerance ? "--atol and --rtol" : "the default tolerances (docs/optimizer.md, 5)";
  if (report.passed) return "passed: within " + bounds + "; --atol 0 asks for equal bits";
  return "FAILED: not within " + bounds;
}

void print_comparison(const optim::ReplayOptions& options, const optim::ReplayReport& report,
                      Console& console) {
  console.out() << "\ncompared with " << ckpt::escaped(options.expect.string()) << "\n";
  Table table({{"state"},
               {"tensors", Align::Right},
               {"bitwise equal", Align::Right},
               {"result"},
               {"max abs", Align::Right},
               {.title = "max scaled ulp", .align = Align::Right, .drop_order = 1},
               {.title = "worst tensor", .can_shorten = true}});
  for (const optim::ComparedKind& kind : report.compared) {
    const bool differs = kind.equal != kind.tensors;
    table.add_row({{kind.kind},
                   {std::to_string(kind.tensors)},
                   {std::to_string(kind.equal)},
                   {kind.passed ? "passed" : "FAILED", kind.passed ? Paint::Green : Paint::Red},
                   {short_number_text(kind.worst.max_abs)},
                   {short_number_text(kind.worst.max_ulp)},
                   {differs ? ckpt::escaped(kind.worst_tensor) : ""}});
  }
  table.print(console);
  if (!report.divergence) {
    console.print_text("identical");
    return;
  }
  const optim::Divergence& divergence = *report.divergence;
  console.out() << "\n";
  console.print_text(first_difference(divergence));
  console.out() << sizes_of_difference(divergence) << "\n\n";
  if (!divergence.parts.empty()) print_parts(divergence, console);
  console.print_text(first_part(divergence));
  console.print_text(verdict(options, report));
  if (report.has_unused_norms) {
    console.note("--grad-norm recorded clips by the norms of the run, which run.json has");
  }
}

std::string details_of(const optim::ReplayReport& report) {
  if (!report.divergence) return {};
  return first_difference(*report.divergence) + "\n" + sizes_of_difference(*report.divergence) +
         "\n" + first_part(*report.divergence);
}

std::string list(const std::vector<std::string>& arguments) {
  return arguments.empty() ? "none" : joined(arguments, ", ", ckpt::escaped);
}

}  // namespace

json report_json(const optim::ReplayOptions& options, const optim::ReplayReport& report) {
  json document = json_document();
  document["checkpoint"] = json_text(options.checkpoint.string());
  document["data_parallel"] = report.data_parallel;
  document["processes"] = report.processes;
  document["first_iteration"] = report.first_iteration;
  document["steps"] = json_list(report.steps, [](const optim::ReplayedStep& step) -> json {
    return {{"lr", step.lr},
            {"grad_norm", finite(step.grad_norm)},
            {"grad_norm_used", finite(step.grad_norm_used)},
            {"num_zeros", step.num_zeros},
            {"loss_scale", step.loss_scale},
            {"skipped", step.was_skipped}};
  });
  if (!options.expect.empty()) document["expected"] = comparison_json(options, report);
  if (!options.output.empty()) {
    document["output"] = json_text(options.output.string());
    document["not_carried"] = json_texts(report.not_carried);
  }
  return document;
}

void print_report(const optim::ReplayOptions& options, const optim::ReplayReport& report,
                  Console& console) {
  console.print_text(ckpt::escaped(options.checkpoint.string()) + ": " +
                     count_text(report.data_parallel, "data-parallel rank") + " in " +
                     std::to_string(report.processes) +
                     (report.processes == 1 ? " process" : " processes"));
  print_steps(report, console);
  if (!options.expect.empty()) print_comparison(options, report, console);
  if (!options.output.empty()) {
    console.out() << "\nwrote " << ckpt::escaped(options.output.string()) << "\n";
    for (const std::string& lost : report.not_carried) {
      console.print_text("not carried: " + ckpt::escaped(lost));
    }
  }
}

std::vector<JunitCase> junit_cases(const optim::ReplayReport& report) {
  std::vector<JunitCase> cases;
  for (const optim::ComparedKind& kind : report.compared) {
    cases.push_back({.name = kind.kind});
    if (kind.passed) continue;
    cases.back().failure = std::to_string(kind.tensors - kind.equal) + " of " +
                           count_text(static_cast<uint64_t>(kind.tensors), "tensor") +
                           " differ, '" + kind.worst_tensor + "' by up to " +
                           short_number_text(kind.worst.max_abs);
    cases.back().details = details_of(report);
  }
  return cases;
}

nlohmann::json bisect_json(const optim::BisectReport& report) {
  nlohmann::json document = json_document();
  document["trials"] = json_list(report.trials, [](const optim::BisectTrial& trial) -> json {
    return {
        {"arguments", trial.arguments}, {"passed", trial.passed}, {"identical", trial.identical}};
  });
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

// ckpt-inspect lineage: the iterations of a root, and how the state went. Exit code 5 if none.
#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>
#include <span>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/table.h>
#include <common/text.h>
#include <training/lineage.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"

namespace tools::inspect {
namespace {

constexpr std::string_view kBlocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
                                        "\u2585", "\u2586", "\u2587", "\u2588"};
constexpr std::string_view kAscii[] = {"_", ".", "-", "~", "=", "+", "*", "#"};

// Numbers as a row of small bars from the smallest to the largest, one character each, all in the
// middle where they are equal but for the last digits; blank where there is none, "!" for NaN and
// infinity. `is_utf8`: block elements, else ASCII.
std::string sparkline(const std::vector<std::optional<double>>& values, bool is_utf8) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& value : values) {
    if (!value || !std::isfinite(*value)) continue;
    low = std::min(low, *value);
    high = std::max(high, *value);
  }
  // Sums in another order differ in their last digits: that is not a curve.
  const bool is_flat = !(high / 2 - low / 2 > 1e-6 * std::max(std::abs(low), std::abs(high)));
  const std::span<const std::string_view> bars(is_utf8 ? kBlocks : kAscii);
  const auto highest = static_cast<double>(bars.size() - 1);
  std::string line;
  for (const auto& value : values) {
    if (!value) {
      line += " ";
    } else if (!std::isfinite(*value)) {
      line += "!";
    } else {
      const double share = is_flat ? 0.5 : (*value / 2 - low / 2) / (high / 2 - low / 2);
      line += bars[static_cast<size_t>(std::lround(share * highest))];
    }
  }
  return line;
}

using optim::LineageEvent;
using optim::LineageEventKind;
using optim::LineageRow;
using Curve = std::vector<std::optional<double>>;

struct LineageOptions {
  std::string root;
  optim::LineageOptions lineage;

  void declare(CLI::App& app) {
    add_place(app, "ROOT", root, kRootOfIterations);
    app.add_flag("--quick", lineage.quick, "Metadata alone: reads no tensor, shows no norms");
    add_follow_links(app, lineage.limits);
  }
};

std::string rates_text(const std::vector<double>& rates) {
  return rates.empty() ? "-" : joined(rates, " / ", short_number_text);
}

bool is_megatron(const LineageRow& row) { return row.named.writer == "Megatron"; }

std::string folder_name(const LineageRow& row) {
  return ckpt::escaped(row.named.folder.path.filename().string());
}

// What a line about a row begins with: "iteration 100", "checkpoint-500".
std::string label_of(const LineageRow& row) {
  return is_megatron(row) ? "iteration " + std::to_string(row.named.folder.iteration)
                          : folder_name(row);
}

Cell status_cell(const LineageRow& row) {
  if (row.is_unsupported) return {"not read", Paint::Yellow};
  if (!row.health) return {"unreadable", Paint::Red};
  if (row.is_complete) return {"complete", Paint::Green};
  if (row.is_renamed) return {"renamed", Paint::Red};
  return {std::string(name(*row.health)), Paint::Red};
}

std::string norm_text(double norm) {
  return std::isfinite(norm) ? short_number_text(norm) : "NaN/Inf";
}

std::string or_dash(const std::optional<double>& number) {
  return number ? norm_text(*number) : "-";
}

// The states that any iteration has, in the order of their names; not the masters.
std::vector<std::string> moments_of(const optim::Lineage& lineage) {
  std::set<std::string> names;
  for (const LineageRow& row : lineage.rows) {
    if (!row.norms) continue;
    for (const auto& [state, norm] : row.norms->states) names.insert(state);
  }
  names.erase("fp32_param");
  names.erase("param");
  return {names.begin(), names.end()};
}

std::optional<double> state_norm(const std::optional<optim::StateNorms>& norms,
                                 const std::string& state) {
  if (!norms) return std::nullopt;
  const auto found = norms->states.find(state);
  return found == norms->states.end() ? std::nullopt : std::optional(found->second);
}

void print_iterations(Console& console, const optim::Lineage& lineage) {
  const bool has_scale = std::ranges::any_of(
      lineage.rows, [](const LineageRow& row) { return row.loss_scale.has_value(); });
  const bool has_norms = std::ranges::any_of(
      lineage.rows, [](const LineageRow& row) { return row.norms.has_value(); });
  const bool is_of_megatron = std::ranges::all_of(lineage.rows, is_megatron);
  std::vector<Column> columns = {
      is_of_megatron ? Column{"ITERATION", Align::Right} : Column{"FOLDER"},
      {"STATUS"},
      {.title = "BYTES", .align = Align::Right, .drop_order = 3},
      {"STEP", Align::Right},
      {.title = "LR", .drop_order = 4}};
  const std::vector<std::string> moments = moments_of(lineage);
  if (has_scale) columns.push_back({.title = "SCALE", .align = Align::Right, .drop_order = 2});
  if (has_norms) columns.push_back({"WEIGHTS", Align::Right});
  for (const std::string& moment : moments) {
    columns.push_back({.title = ckpt::escaped(moment), .align = Align::Right, .drop_order = 1});
  }
  Table table(std::move(columns));
  for (const LineageRow& row : lineage.rows) {
    std::vector<Cell> cells = {
        {is_of_megatron ? std::to_string(row.named.folder.iteration) : folder_name(row),
         Paint::Bold},
        status_cell(row),
        {row.file_bytes ? size_text(*row.file_bytes) : "-"},
        {row.step ? std::to_string(*row.step) : "-"},
        {rates_text(row.learning_rates)}};
    if (has_scale) cells.push_back({or_dash(row.loss_scale)});
    if (has_norms) cells.push_back({or_dash(row.norms ? row.norms->weights : std::nullopt)});
    for (const std::string& moment : moments) {
      cells.push_back({or_dash(state_norm(row.norms, moment))});
    }
    table.add_row(std::move(cells));
  }
  table.print(console);
}

// --- pictures ---

struct NamedCurve {
  std::string name;
  Curve values;
};

template <class Take>
Curve curve_of(const optim::Lineage& lineage, Take take) {
  Curve curve;
  for (const LineageRow& row : lineage.rows) curve.push_back(take(row));
  return curve;
}

const optim::StateNorms* norms_of(const LineageRow& row, const std::string& module) {
  const auto found = std::ranges::find(row.modules, module, &optim::ModuleNorms::module);
  return found == row.modules.end() ? nullptr : &found->norms;
}

// In the order of the newest iteration that has them.
std::vector<std::string> modules_of(const optim::Lineage& lineage) {
  for (size_t i = lineage.rows.size(); i-- > 0;) {
    std::vector<std::string> names;
    for (const auto& module : lineage.rows[i].modules) names.push_back(module.module);
    if (!names.empty()) return names;
  }
  return {};
}

void add_module_curves(const optim::Lineage& lineage, const std::vector<std::string>& moments,
                       std::vector<NamedCurve>& curves) {
  for (const std::string& module : modules_of(lineage)) {
    const auto add = [&](const std::string& what, const auto& take) {
      curves.push_back({ckpt::escaped(module) + " " + what,
                        curve_of(lineage, [&](const LineageRow& row) -> std::optional<double> {
                          const optim::StateNorms* const norms = norms_of(row, module);
                          return norms == nullptr ? std::nullopt : take(*norms);
                        })});
    };
    add("weights", [](const optim::StateNorms& norms) { return norms.weights; });
    for (const std::string& moment : moments) {
      add(ckpt::escaped(moment),
          [&](const optim::StateNorms& norms) { return state_norm(norms, moment); });
    }
  }
}

std::vector<NamedCurve> curves_of(const optim::Lineage& lineage, bool with_modules) {
  std::vector<NamedCurve> curves;
  const auto add = [&](std::string name, const auto& take) {
    curves.push_back({std::move(name), curve_of(lineage, take)});
  };
  add("lr", [](const LineageRow& row) {
    return row.learning_rates.empty() ? std::nullopt : std::optional(row.learning_rates[0]);
  });
  add("loss scale", [](const LineageRow& row) { return row.loss_scale; });
  add("weights",
      [](const LineageRow& row) { return row.norms ? row.norms->weights : std::nullopt; });
  const std::vector<std::string> moments = moments_of(lineage);
  for (const std::string& moment : moments) {
    add(ckpt::escaped(moment),
        [&](const LineageRow& row) { return state_norm(row.norms, moment); });
  }
  if (with_modules) add_module_curves(lineage, moments, curves);
  return curves;
}

std::string range_text(const Curve& curve) {
  std::optional<double> first, last;
  for (const auto& value : curve) {
    if (!value) continue;
    if (!first) first = value;
    last = value;
  }
  return norm_text(*first) + " .. " + norm_text(*last);
}

// A curve needs two points.
void print_curves(Console& console, const std::vector<NamedCurve>& curves) {
  const bool is_utf8 = console.screen().is_utf8;
  Table table({{.title = "CURVE", .can_shorten = true},
               {"FIRST .. LAST"},
               {.title = "", .can_shorten = true}});
  for (const auto& [name, values] : curves) {
    const auto has_value = [](const std::optional<double>& value) { return value.has_value(); };
    if (std::ranges::count_if(values, has_value) < 2) continue;
    table.add_row({{name}, {range_text(values)}, {sparkline(values, is_utf8), Paint::Cyan}});
  }
  table.print_apart(console);
}

// --- what happened ---

std::string event_text(const optim::Lineage& lineage, const LineageEvent& event) {
  const std::string key = ckpt::printed_key(event.key);
  switch (event.kind) {
    case LineageEventKind::NotFinite:
      return key + " has " + count_text(event.count, "NaN or infinite element");
    case LineageEventKind::Stopped:
      return key + " is what it was at " + label_of(lineage.rows.at(event.since.value_or(0))) +
             ", its moments are not zero";
    case LineageEventKind::ZeroMoment: return key + " is all zero";
  }
  return {};
}

void print_events(Console& console, const optim::Lineage& lineage) {
  constexpr size_t kShown = 3;
  const size_t shown_max = console.options().verbose ? SIZE_MAX : kShown;
  const std::vector<LineageEvent>& events = lineage.events;
  for (size_t first = 0; first < events.size();) {
    const LineageEvent& event = events[first];
    const std::string label = label_of(lineage.rows.at(event.row));
    size_t end = first;
    while (end < events.size() && events[end].kind == event.kind && events[end].row == event.row) {
      ++end;
    }
    for (size_t i = first; i < std::min(end, first + shown_max); ++i) {
      console.print_text(label + ": " +
                         console.paint(Paint::Yellow, event_text(lineage, events[i])));
    }
    if (end - first > shown_max) {
      console.print_text(label + ": the same of " + std::to_string(end - first - shown_max) +
                         " more (--verbose)");
    }
    first = end;
  }
}

// Where the norm of a module's weights is many times that of the iteration before.
struct Growth {
  const LineageRow& row;
  const optim::ModuleNorms& module;  // that has grown most
  double before;                     // its norm
  size_t module_count;               // that have grown
};

std::optional<Growth> growth_from(const LineageRow& before, const LineageRow& row) {
  constexpr double kMuch = 10;
  std::optional<Growth> found;
  double most = 0;
  size_t count = 0;
  for (const optim::ModuleNorms& module : row.modules) {
    const optim::StateNorms* const old = norms_of(before, module.module);
    if (old == nullptr || !old->weights || !module.norms.weights) continue;
    const double ratio = *module.norms.weights / *old->weights;
    if (!std::isfinite(ratio) || ratio < kMuch) continue;
    ++count;
    if (ratio <= most) continue;
    most = ratio;
    found.emplace(Growth{row, module, *old->weights, 0});
  }
  if (found) found->module_count = count;
  return found;
}

std::vector<Growth> growths_of(const optim::Lineage& lineage) {
  std::vector<Growth> growths;
  for (size_t i = 1; i < lineage.rows.size(); ++i) {
    if (const auto found = growth_from(lineage.rows[i - 1], lineage.rows[i])) {
      growths.push_back(*found);
    }
  }
  return growths;
}

void print_growths(Console& console, const std::vector<Growth>& growths) {
  for (const auto& [row, module, before, count] : growths) {
    const std::string text = "weights of " + ckpt::printed_key(module.module) +
                             " have grown: norm " + norm_text(before) + " -> " +
                             norm_text(*module.norms.weights);
    console.print_text(label_of(row) + ": " + console.paint(Paint::Yellow, text) +
                       (count == 1 ? ""
                                   : "; so have those of " + count_text(count - 1, "more module") +
                                         " (--verbose)"));
  }
}

void print_problems(Console& console, const optim::Lineage& lineage) {
  for (const LineageRow& row : lineage.rows) {
    if (row.problem.empty()) continue;
    console.print_text(label_of(row) + ": " + console.paint(Paint::Red, row.problem));
  }
}

void print_text(Console& console, const optim::Lineage& lineage) {
  print_iterations(console, lineage);
  print_curves(console, curves_of(lineage, console.options().verbose));
  const std::vector<Growth> growths = growths_of(lineage);
  const bool has_more =
      !lineage.events.empty() || !growths.empty() ||
      std::ranges::any_of(lineage.rows, [](const LineageRow& row) { return !row.problem.empty(); });
  if (has_more) console.out() << '\n';
  print_problems(console, lineage);
  print_events(console, lineage);
  print_growths(console, growths);
}

int run(const LineageOptions& options, Console& console) {
  std::optional<ProgressLine> line(std::in_place, console, "reading");
  optim::LineageOptions lineage_options = options.lineage;
  lineage_options.execution = make_execute_options(console, *line);
  const optim::Lineage lineage = optim::trace_lineage(options.root, lineage_options);
  line.reset();
  warn_of_elsewhere(console, lineage.elsewhere);
  console.options().json ? print_json(console, lineage_to_json(lineage))
                         : print_text(console, lineage);
  return 0;
}

}  // namespace

Command make_lineage_command() {
  return make_command<LineageOptions>(
      {.name = "lineage",
       .description =
           "Lists the iterations of a root, as Megatron, Hugging Face's Trainer, Accelerate, "
           "torchtitan, verl or DeepSpeed name them: complete or not, step, norms of weights, "
           "of moments and learning rates where they are stored with the weights or in an "
           "optimizer.pt beside them, and what stopped or became NaN; exit code 5 if there is "
           "none.",
       .examples = {"ckpt-inspect lineage ckpt/", "ckpt-inspect lineage ckpt/ --quick",
                    "ckpt-inspect lineage ckpt/ --json"},
       .verbose = "Curves of each module, and all that happened",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect

// ckpt-inspect groups: parameter groups, their settings, who owns what, and the balance.
#include <algorithm>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <training/groups.h>
#include <training/optimizer_facts.h>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

struct GroupsOptions {
  SourceOptions source;
  KeyFilter filter;
  size_t limit = SIZE_MAX;

  void declare(CLI::App& app) {
    source.declare(app);
    const auto add_key = [this](const std::vector<std::string>& keys) {
      filter.include.insert(filter.include.end(), keys.begin(), keys.end());
    };
    app.add_option_function<std::vector<std::string>>(
           "KEY", add_key, "A parameter as the table names it, or a glob; as --include")
        ->option_text("...");
    filter.declare(app);
    add_value(app, "--limit N", limit, "At most this many parameters")->check(kCount);
  }
};

// "Muon, group 0.1": optimizer 0, its group 1, as the parameters below are listed.
std::string group_name(const optim::StoredGroup& group, const optim::RunFacts& run) {
  const std::string file = group.file.empty() ? "" : ckpt::escaped(group.file) + ": ";
  return file + rule_of(group, run) + ", group " + std::to_string(group.optimizer) + "." +
         std::to_string(group.group);
}

// What people set, in the order in which they say it.
constexpr std::string_view kMainSettings[] = {"lr",  "betas", "momentum",     "dampening",
                                              "eps", "step",  "weight_decay", "nesterov"};

void add_setting(const std::pair<std::string, ckpt::Value>& setting, std::string& text) {
  text +=
      (text.empty() ? "" : ", ") + ckpt::escaped(setting.first) + " " + value_text(setting.second);
}

void print_settings(Console& console, const std::string& text) {
  if (text.empty()) return;
  const auto width = console.screen().width;
  console.out() << "  " << console.screen().shown(width ? wrapped(text, *width - 2, 4) : text)
                << '\n';
}

void print_group(Console& console, const optim::StoredGroup& group, const optim::RunFacts& run) {
  std::string title = console.paint(Paint::Bold, group_name(group, run));
  if (group.param_count) title += ": " + count_text(*group.param_count, "parameter");
  if (group.element_count) title += ", " + count_text(*group.element_count, "element");
  console.print_text(title);
  std::string main, others;
  for (const std::string_view name : kMainSettings) {
    for (const auto& setting : group.settings) {
      if (setting.first == name) add_setting(setting, main);
    }
  }
  for (const auto& setting : group.settings) {
    const bool is_main = std::ranges::find(kMainSettings, setting.first) != std::end(kMainSettings);
    if (!is_main) add_setting(setting, others);
  }
  print_settings(console, main);
  print_settings(console, others);
}

double mean_of(const std::vector<optim::RankLoad>& ranks, double (*part)(const optim::RankLoad&)) {
  double total = 0;
  for (const optim::RankLoad& load : ranks) total += part(load);
  return total / static_cast<double>(ranks.size());
}

double bytes_of(const optim::RankLoad& load) { return static_cast<double>(load.state_bytes); }
double cost_of(const optim::RankLoad& load) { return load.cost.value_or(0); }

// 1 is what all ranks would have if they had the same.
std::string portion_text(double part, double mean) {
  return mean > 0 ? short_number_text(part / mean) : "-";
}

// Plain state is counted and listed as it is stored: what a rank has of it.
bool is_as_stored(const optim::GroupReport& report) {
  return !report.ranks.empty() && report.names != optim::NameSource::TrainingState;
}

void print_ranks(Console& console, const optim::GroupReport& report) {
  const std::vector<optim::RankLoad>& ranks = report.ranks;
  Table table({{"RANK", Align::Right},
               {"PARAMETERS", Align::Right},
               {.title = is_as_stored(report) ? "STATE ELEMENTS" : "ELEMENTS",
                .align = Align::Right,
                .drop_order = 1},
               {"STATE", Align::Right},
               {.title = "/ MEAN", .align = Align::Right, .drop_order = 2},
               {"COST / MEAN", Align::Right}});
  for (const optim::RankLoad& load : ranks) {
    table.add_row({{std::to_string(load.rank), Paint::Bold},
                   {std::to_string(load.param_count)},
                   {std::to_string(load.element_count)},
                   {size_text(load.state_bytes)},
                   {portion_text(bytes_of(load), mean_of(ranks, bytes_of))},
                   {load.cost ? portion_text(*load.cost, mean_of(ranks, cost_of)) : "-"}});
  }
  table.print_apart(console);
}

// Of a rank's tensor the elements that it owns: "all", "1024-2047".
std::string range_text(const optim::OwnedParam& param) {
  if (!param.elements) return "all";
  const auto& [begin, end] = *param.elements;
  if (begin == 0 && end == ckpt::element_count({param.shape.begin(), param.shape.end()})) {
    return "all";
  }
  return std::to_string(begin) + "-" + std::to_string(end - 1);
}

void print_params(Console& console, const optim::GroupReport& report, size_t limit) {
  if (report.params.empty()) return;
  const bool has_ranks = !report.ranks.empty();
  const bool has_groups = report.has_groups_of_params;
  const bool has_ranges = std::ranges::any_of(
      report.params, [](const optim::OwnedParam& param) { return param.elements.has_value(); });
  std::vector<Column> columns;
  if (has_ranks) columns.push_back({"RANK", Align::Right});
  columns.insert(columns.end(), {{"GROUP"}, {is_as_stored(report) ? "PART" : "SHAPE"}});
  if (has_ranges) columns.push_back({"ELEMENTS"});
  columns.push_back({.title = has_groups ? "PARAMETER" : "STATE", .can_shorten = true});
  Table table(std::move(columns));
  for (size_t i = 0; i < std::min(limit, report.params.size()); ++i) {
    const optim::OwnedParam& param = report.params[i];
    std::vector<Cell> row;
    if (has_ranks) row.push_back({std::to_string(param.rank), Paint::Bold});
    row.push_back(
        {has_groups ? std::to_string(param.optimizer) + "." + std::to_string(param.group) : "-"});
    row.push_back(
        {param.has_shape ? ckpt::shape_text({param.shape.begin(), param.shape.end()}) : "-"});
    if (has_ranges) row.push_back({range_text(param)});
    row.push_back({ckpt::escaped(param.name)});
    table.add_row(std::move(row));
  }
  console.out() << '\n';
  table.print(console);
  if (report.params.size() > limit) {
    console.out() << "... " << report.params.size() - limit << " more\n";
  }
}

// Who says the names; nothing of Megatron's training state, which proves them by content.
std::string names_text(optim::NameSource names) {
  switch (names) {
    case optim::NameSource::ParamGroups: return "names are those that param_groups have";
    case optim::NameSource::ParamNames: return "names are those of param_names";
    case optim::NameSource::ModelOrder:
      return "names are those of the model in this file, taken in its order: the shapes of all "
             "states fit that in one way only";
    case optim::NameSource::TrainingState:
    case optim::NameSource::Numbers: break;
  }
  return {};
}

void print_report(Console& console, const optim::GroupReport& report, const optim::RunFacts& run,
                  const GroupsOptions& options) {
  for (const optim::StoredGroup& group : report.groups) print_group(console, group, run);
  if (options.filter.is_everything()) print_ranks(console, report);  // their sums are of all
  print_params(console, report, options.limit);
  if (const std::string names = names_text(report.names); !names.empty()) console.note(names);
  if (!report.unnamed_reason.empty()) {
    const std::string_view front =
        report.has_groups_of_params ? "" : "which parameters are in which group is not known: ";
    console.note(std::string(front) + report.unnamed_reason);
  }
}

void print_report_as_json(Console& console, const optim::GroupReport& report,
                          const optim::RunFacts& run, size_t limit) {
  nlohmann::json document = json_document();
  add_groups(document, report, run);
  document["names"] = name(report.names);
  document["parameters"] = nlohmann::json::array();
  for (size_t i = 0; i < std::min(limit, report.params.size()); ++i) {
    const optim::OwnedParam& param = report.params[i];
    nlohmann::json json = {{"key", json_text(param.name)}};
    if (!report.ranks.empty()) json["rank"] = param.rank;
    if (param.has_shape) json["shape"] = param.shape;
    if (param.elements) {
      json["elements"] = {{"begin", param.elements->begin}, {"end", param.elements->end}};
    }
    if (report.has_groups_of_params) {
      json["optimizer"] = param.optimizer;
      json["group"] = param.group;
    }
    document["parameters"].push_back(std::move(json));
  }
  print_json(console, document);
}

// Leaves the parameters that are selected, and their groups; ranks keep their sums.
void keep_selected(optim::GroupReport& report, const KeyFilter& filter) {
  if (filter.is_everything()) return;
  ckpt::KeySelection selection = filter.selection();
  std::vector<ckpt::KeyName> names;
  for (const optim::OwnedParam& param : report.params) names.push_back({{}, param.name});
  selection.resolve(names);
  selection.refuse_missing(names);
  std::vector<optim::OwnedParam> kept;  // names point into the others
  for (const optim::OwnedParam& param : report.params) {
    if (selection.accepts({}, param.name)) kept.push_back(param);
  }
  if (kept.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {}, "no parameter is selected by " + filter.text(),
                      "without a filter, ckpt-inspect groups lists the names");
  }
  report.params = std::move(kept);
  if (!report.has_groups_of_params) return;
  std::erase_if(report.groups, [&](const optim::StoredGroup& group) {
    return std::ranges::none_of(report.params, [&](const optim::OwnedParam& param) {
      return param.optimizer == group.optimizer && param.group == group.group;
    });
  });
}

int run(const GroupsOptions& options, Console& console) {
  const optim::OpenedTraining checkpoint = options.source.open();
  optim::GroupReport report = optim::describe_groups(checkpoint);
  keep_selected(report, options.filter);
  const optim::RunFacts run = optim::run_facts(checkpoint);
  console.options().json ? print_report_as_json(console, report, run, options.limit)
                         : print_report(console, report, run, options);
  return 0;
}

}  // namespace

Command make_groups_command() {
  return make_command<GroupsOptions>(
      {.name = "groups",
       .description =
           "Shows parameter groups, their settings and parameters, who owns what on each rank, and "
           "the balance.",
       .examples = {"ckpt-inspect groups ckpt/", "ckpt-inspect groups ckpt/ '*layernorm*'",
                    "ckpt-inspect groups ckpt/ --limit 0 --json"}},
      run);
}

}  // namespace tools::inspect

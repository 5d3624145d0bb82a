// ckpt-inspect PATH: one page about a checkpoint.
#include <filesystem>
#include <ostream>
#include <span>

#include <ckpt/error.h>
#include <common/console.h>
#include <common/json.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <training/megatron_folders.h>
#include <training/summary.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/listing.h"
#include "inspect/page_text.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

constexpr size_t kLargestListed = 10;

nlohmann::json writers_json(const optim::Summary& summary) {
  nlohmann::json json = nlohmann::json::object();
  if (!summary.run.checkpoint_version.empty()) {
    json["megatron_checkpoint_version"] = json_text(summary.run.checkpoint_version);
  }
  const auto& version = summary.dcp_version;
  if (!version) return json;
  json["dcp_metadata_version"] = json_text(
      version->is(ckpt::Kind::Str) ? ckpt::escaped(version->text()) : value_text(*version));
  return json;
}

nlohmann::json trainer_json(const optim::TrainerFacts& trainer) {
  nlohmann::json json = nlohmann::json::object();
  if (!trainer.trainer.empty()) json["name"] = trainer.trainer;
  if (!trainer.version.empty()) json["version"] = json_text(trainer.version);
  if (trainer.epoch) json["epoch"] = *trainer.epoch;
  if (trainer.step) json["step"] = *trainer.step;
  if (!trainer.source.empty()) json["source"] = trainer.source;
  return json;
}

nlohmann::json modules_json(const optim::ModuleTable& modules) {
  nlohmann::json json = nlohmann::json::array();
  for (const optim::ModuleRow& row : modules.rows) {
    json.push_back({{"name", json_text(row.name)},
                    {"parameters", row.size.parameter_count},
                    {"model_bytes", row.size.model_bytes},
                    {"optimizer_bytes", row.size.optimizer_bytes}});
    if (row.layer_count != 0) json.back()["layers"] = row.layer_count;
  }
  return json;
}

nlohmann::json largest_json(const std::vector<optim::LogicalTensor>& tensors) {
  return json_list(optim::largest_tensors(tensors, kLargestListed),
                   [](const optim::LogicalTensor* tensor) -> nlohmann::json {
                     return {{"name", json_text(optim::name_or_key(*tensor))},
                             {"shape", tensor->shape},
                             {"dtype", ckpt::name(tensor->dtype)},
                             {"bytes", tensor->count_bytes}};
                   });
}

nlohmann::json optimizer_json(const optim::Summary& summary) {
  nlohmann::json json = {{"rules", to_json(summary.optimizers)},
                         {"states", json_list(summary.states, json_text)}};
  if (!summary.sharding.empty()) json["sharding"] = json_text(summary.sharding);
  const auto& beside = summary.groups.beside;
  if (!beside.empty()) {
    json["files"] = json_list(beside, [](const auto& file) { return json_text(file.first); });
  }
  if (summary.step && (!summary.states.empty() || !beside.empty())) json["step"] = *summary.step;
  json["balance"] = nlohmann::json::array();
  for (const optim::RankLoad& load : summary.groups.ranks) {
    if (load.cost) json["balance"].push_back({{"rank", load.rank}, {"cost", *load.cost}});
  }
  return json;
}

nlohmann::json status_json(const optim::Status& status) {
  nlohmann::json json = {{"health", name(status.health)}, {"findings", status.problem_count}};
  if (!status.problem.empty()) json["problem"] = json_text(status.problem);
  if (!status.incomplete.empty()) json["incomplete"] = json_texts(status.incomplete);
  return json;
}

nlohmann::json beside_json(const std::vector<ckpt::FileBeside>& beside) {
  nlohmann::json json = nlohmann::json::array();
  for (const ckpt::FileBeside& file : beside) {
    json.push_back({{"path", json_text(file.path)}, {"what", json_text(file.what)}});
    if (!file.is_folder) json.back()["bytes"] = file.count_bytes;
  }
  return json;
}

nlohmann::json files_json(const ckpt::Catalog& catalog) {
  return json_list(catalog.files, [](const ckpt::FileEntry& file) -> nlohmann::json {
    return {{"path", json_text(file.path)}, {"bytes", file.count_bytes}};
  });
}

// Where an iteration of a root is incomplete, an earlier one may not be.
void tell_of_latest(Console& console, const std::filesystem::path& path) {
  if (ckpt::kind_at(path / optim::kMegatronFolders.tracker) == ckpt::EntryKind::Absent) return;
  console.note("ckpt-inspect latest " + shell_word(path.string()) +
               " names the newest iteration that is complete");
}

// docs/schema/summary.json: what does not depend on whether the checkpoint can be opened.
nlohmann::json summary_json(const optim::Summary& summary) {
  nlohmann::json document = json_document(2);
  document["path"] = json_text(summary.path);
  if (!summary.variant.empty()) document["format_variant"] = summary.variant;
  document["writers"] = writers_json(summary);
  if (!summary.trainer.empty()) document["trainer"] = trainer_json(summary.trainer);
  document["parallel"] = nlohmann::json::object();
  for (const auto& [size, value] : summary.run.sizes) document["parallel"][size] = value;
  if (summary.writer_count) document["writing_ranks"] = *summary.writer_count;
  if (summary.parameter_count) document["parameters"] = *summary.parameter_count;
  if (!summary.contents.uncounted_reason.empty()) {
    document["uncounted_reason"] = summary.contents.uncounted_reason;
  }
  document["tensor_bytes"] = summary.stored_tensor_bytes;
  document["file_count"] = summary.files.count;
  document["file_bytes"] = summary.files.count_bytes;
  document["kinds"] = to_json(summary.kinds);
  document["dtypes"] = to_json(summary.dtypes);
  if (summary.file_of_set) document["file_of_set"] = to_json(*summary.file_of_set);
  for (const std::string& line : summary.parts.lines()) document["parts"].push_back(line);
  document["modules"] = modules_json(summary.modules);
  document["unnamed_optimizer_bytes"] = summary.modules.unnamed_optimizer_bytes;
  document["largest"] = largest_json(summary.contents.tensors);
  document["optimizer"] = optimizer_json(summary);
  document["status"] = status_json(summary.status);
  document["files"] = nlohmann::json::array();
  if (!summary.beside.empty()) document["beside"] = beside_json(summary.beside);
  if (!summary.status.missing.empty()) {
    document["missing_files"] = json_texts(summary.status.missing);
  }
  return document;
}

void print_summary_as_json(Console& console, const Page& page) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  nlohmann::json document = summary_json(page.summary);
  document["format"] = name(catalog.format);
  document["format_text"] = format_words(page);
  if (catalog.iteration) document["iteration"] = *catalog.iteration;
  if (catalog.iteration) document["iteration_from_tracker"] = page.is_of_tracker;
  document["files"] = files_json(catalog);
  print_json(console, document);
}

// Of a folder that cannot be opened, because of what is missing.
void print_incomplete_as_json(Console& console, const std::string& path,
                              const std::string& problem) {
  optim::Summary nothing;
  nothing.path = path;
  nothing.status = {optim::Health::Incomplete, {}, {problem}, problem, 1};
  nlohmann::json document = summary_json(nothing);
  document["format_text"] = "a checkpoint that cannot be opened";
  print_json(console, document);
}

constexpr size_t kPageWidth = 80;  // where stdout is not a terminal
constexpr size_t kIterationColumn = 25;
constexpr size_t kPageLines = 24;
constexpr size_t kModulesShown = 6, kModulesShownMin = 3;
constexpr size_t kLargestShown = 3;

struct SummaryOptions {
  SourceOptions source;
  void declare(CLI::App& app) { source.declare(app); }
};

size_t page_width(const Console& console) { return console.screen().width.value_or(kPageWidth); }

std::vector<std::string> head_lines(const Page& page, size_t width) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  const std::string path = ckpt::escaped(page.summary.path);
  if (!catalog.iteration) return {path};
  const std::string text = "iteration " + std::to_string(*catalog.iteration) +
                           (page.is_of_tracker ? " (latest_checkpointed_iteration.txt)" : "");
  const size_t used = display_width(path);
  const size_t blanks = used + 2 > kIterationColumn ? 2 : kIterationColumn - used;
  if (used + blanks + text.size() > width) return {path, "           " + text};
  return {path + std::string(blanks, ' ') + text};
}

Paint paint_of(const Fact& fact, const optim::Status& status) {
  if (fact.label != "status") return Paint::Plain;
  switch (status.health) {
    case optim::Health::Complete: return Paint::Green;
    case optim::Health::Incomplete:
    case optim::Health::Damaged: return Paint::Red;
    default: return Paint::Yellow;
  }
}

// The number of lines that were printed.
size_t print_facts(Console& console, const Page& page) {
  const size_t width = page_width(console);
  size_t count = 0;
  const auto print = [&](const std::string& line, Paint paint) {
    console.out() << console.paint(paint, console.screen().shown(line)) << '\n';
    ++count;
  };
  for (const std::string& line : head_lines(page, width)) print(line, Paint::Bold);
  for (const Fact& fact : facts_of(page)) {
    const Paint paint = paint_of(fact, page.summary.status);
    for (const std::string& line : fact_lines(fact, width)) print(line, paint);
  }
  return count;
}

std::string size_or_dash(uint64_t bytes) { return bytes != 0 ? size_text(bytes) : "-"; }

void add_module(Table& table, const optim::ModuleRow& row, uint64_t count_max) {
  table.add_row({{ckpt::escaped(row.name)},
                 {row.size.parameter_count != 0 ? amount_text(row.size.parameter_count) : "-"},
                 {size_or_dash(row.size.model_bytes)},
                 {size_or_dash(row.size.optimizer_bytes)},
                 {bar(row.size.parameter_count, count_max), Paint::Cyan}});
}

// The modules that are not shown, as one row.
optim::ModuleRow rest_of(const std::vector<optim::ModuleRow>& rows, size_t first) {
  return {"(" + count_text(rows.size() - first, "more module") + ")",
          optim::sum_of(std::span(rows).subspan(first)), 0};
}

void print_modules(Console& console, const optim::ModuleTable& modules, size_t limit) {
  Table table({{"MODULE", Align::Left, true},
               {"PARAMETERS", Align::Right},
               {"MODEL", Align::Right},
               {"OPTIMIZER", Align::Right, false, 2},
               {"", Align::Left, false, 1}});
  const bool has_unnamed = modules.unnamed_optimizer_bytes != 0;
  limit -= has_unnamed ? 1 : 0;
  const bool is_cut = modules.rows.size() > limit;
  const size_t shown = is_cut ? limit - 1 : modules.rows.size();
  const uint64_t count_max = modules.rows.empty() ? 0 : modules.rows[0].size.parameter_count;
  for (size_t i = 0; i < shown; ++i) add_module(table, modules.rows[i], count_max);
  if (is_cut) add_module(table, rest_of(modules.rows, shown), count_max);
  if (has_unnamed) {
    add_module(table, {"(state not named)", {0, 0, modules.unnamed_optimizer_bytes}, 0}, 0);
  }
  table.print_apart(console);
}

void print_largest(Console& console, const optim::Summary& summary) {
  const auto largest = optim::largest_tensors(summary.contents.tensors, kLargestShown);
  Table table({{"LARGEST", Align::Left, true}, {"SHAPE"}, {"TYPE"}, {"BYTES"}});
  for (const optim::LogicalTensor* tensor : largest) {
    const ckpt::TensorPart* const part =
        tensor->value ? summary.parts.find(tensor->value->key) : nullptr;
    table.add_row({{key_text(optim::name_or_key(*tensor))},
                   {shape_text_of(tensor->shape, part)},
                   {std::string(ckpt::name(tensor->dtype)), Paint::Cyan},
                   {size_text(tensor->count_bytes)}});
  }
  table.print_apart(console);
}

void print_next(Console& console, const optim::Summary& summary, const std::string& path) {
  const std::string groups = summary.groups.groups.empty() ? "" : "groups | ";
  const std::string commands =
      "next: ckpt-inspect ls | tree | " + groups + "show KEY | verify | diff OTHER";
  const std::string word = shell_word(path);
  const size_t width = page_width(console);
  const bool fits = commands.size() + 2 + display_width(word) <= width;
  console.out() << wrapped(commands, width, 6) << (fits ? "  " : "\n      ") << word << '\n';
}

// How many modules there is room for below `fact_lines` lines: both tables have a blank line and a
// title, and the last three lines are what to do next.
size_t modules_shown(size_t fact_lines) {
  const size_t others = fact_lines + 2 + 2 + kLargestShown + 3;
  const size_t room = kPageLines - std::min(kPageLines, others);
  return std::clamp(room, kModulesShownMin, kModulesShown);
}

// --- -v ---

void print_files(Console& console, const ckpt::Catalog& catalog) {
  Table table({{"FILE", Align::Left, true}, {"BYTES", Align::Right}});
  for (const ckpt::FileEntry& file : catalog.files) {
    table.add_row(
        {{ckpt::escaped(file.path)}, {file.is_missing ? "missing" : size_text(file.count_bytes)}});
  }
  console.out() << '\n';
  table.print(console);
}

void print_args(Console& console, const ckpt::Value& args) {
  Table table({{"ARGUMENT"}, {"VALUE", Align::Left, true}});
  for (const auto& [key, value] : ckpt::items_of(args)) {
    table.add_row({{ckpt::escaped(ckpt::key_text(key)), Paint::Cyan}, {value_text(value)}});
  }
  console.out() << '\n';
  table.print(console);
}

void print_details(Console& console, const Page& page) {
  const ckpt::Catalog& catalog = page.checkpoint.catalog();
  print_files(console, catalog);
  const std::vector<optim::CatalogRow> rows = optim::list_rows(catalog);
  console.out() << '\n';
  print_rows(console, {catalog, rows, SIZE_MAX, &page.summary.parts});
  const auto& args = page.summary.run.args;
  if (args) print_args(console, *args);
}

// A folder that cannot be opened because of a file that is missing or ends early.
void print_incomplete(Console& console, const std::string& path, const ckpt::Error& error) {
  if (console.options().json) return print_incomplete_as_json(console, path, error.what());
  console.out() << console.paint(Paint::Bold, ckpt::escaped(path)) << '\n';
  const Fact fact = incomplete_fact({error.what()});
  for (const std::string& line : fact_lines(fact, page_width(console))) {
    console.out() << console.paint(Paint::Red, console.screen().shown(line)) << '\n';
  }
  if (!error.hint().empty()) console.note(error.hint());
  tell_of_latest(console, path);
}

int run(const SummaryOptions& options, Console& console) {
  std::optional<optim::OpenedTraining> opened;
  try {
    opened = options.source.open_quietly();
  } catch (const ckpt::Error& error) {
    const bool is_folder = ckpt::kind_at(options.source.path) == ckpt::EntryKind::Folder;
    if (!error.is_incomplete() || !is_folder) throw;
    print_incomplete(console, options.source.path, error);
    return 0;
  }
  const optim::OpenedTraining& checkpoint = *opened;
  const optim::Summary summary = optim::summarize(checkpoint);
  const Page page{checkpoint, summary, checkpoint.was_root() && !options.source.iteration};
  if (console.options().json) {
    print_summary_as_json(console, page);
    return 0;
  }
  const bool is_verbose = console.options().verbose;
  const size_t fact_lines = print_facts(console, page);
  print_modules(console, summary.modules, is_verbose ? SIZE_MAX : modules_shown(fact_lines));
  print_largest(console, summary);
  if (is_verbose) print_details(console, page);
  console.out() << '\n';
  print_next(console, summary, options.source.path);
  if (summary.status.health == optim::Health::Incomplete) {
    tell_of_latest(console, options.source.path);
  }
  return 0;
}

}  // namespace

Command make_summary_command() { return make_command<SummaryOptions>({"", "Summary."}, run); }

}  // namespace tools::inspect

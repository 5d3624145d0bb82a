// ckpt-inspect ls: one row per tensor and object.
#include <ostream>

#include <common/json.h>
#include <common/option_values.h>
#include <common/source_options.h>
#include <common/text.h>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/listing.h"

namespace tools::inspect {
namespace {

using optim::RowOrder;

struct LsOptions {
  SourceOptions source;
  KeyFilter filter;
  RowOrder sort = RowOrder::Stored;
  size_t limit = SIZE_MAX;

  void declare(CLI::App& app) {
    source.declare(app);
    filter.declare(app);
    add_choice<RowOrder>(app, "--sort", sort, {{"key", RowOrder::Key}, {"size", RowOrder::Size}})
        ->description("By key, or largest first; default: as stored");
    add_value(app, "--limit N", limit, "At most this many rows")->check(kCount);
  }
};

uint64_t total_bytes(const std::vector<optim::CatalogRow>& rows) {
  uint64_t total = 0;
  for (const optim::CatalogRow& row : rows) total += row.count_bytes.value_or(0);
  return total;
}

uint64_t tensor_count(const std::vector<optim::CatalogRow>& rows) {
  const auto objects = std::ranges::count(rows, nullptr, &optim::CatalogRow::tensor);
  return rows.size() - static_cast<size_t>(objects);
}

void print_json_rows(Console& console, const Rows& listed) {
  const auto& [catalog, rows, limit, parts] = listed;
  JsonStream json(console.out());
  json.begin_object();
  json.key("format").text(name(catalog.format));
  const std::vector<std::string> missing = missing_files(catalog);
  if (!missing.empty()) {
    json.key("missing_files").begin_array();
    for (const std::string& path : missing) json.text(path);
    json.end_array();
  }
  add_json_rows(json.key("objects"), listed, false);
  json.key("schema_version").number(kJsonSchemaVersion);
  add_json_rows(json.key("tensors"), listed, true);
  json.key("total").begin_object();
  json.key("bytes").number(total_bytes(rows));
  json.key("objects").number(rows.size() - tensor_count(rows));
  json.key("tensors").number(tensor_count(rows));
  json.end_object();
  json.end_object();
  json.finish();
}

int run(const LsOptions& options, Console& console) {
  // Never taken apart: with 10^6 chunks that takes as long as printing them, and the process ends.
  static const auto* opened = new optim::OpenedTraining(options.source.open_to_list(console));
  const optim::OpenedTraining& checkpoint = *opened;
  KeyFilter filter = options.filter;
  std::vector<optim::CatalogRow> rows = optim::list_rows(checkpoint.catalog(), filter.selection());
  static auto* in_state = new std::vector<optim::Subject>();
  const bool has_matched = filter.include.size() == 1 && !rows.empty();
  if (!has_matched) *in_state = take_from_state(checkpoint, filter);
  if (!in_state->empty()) {
    rows.clear();
    if (!filter.include.empty()) rows = optim::list_rows(checkpoint.catalog(), filter.selection());
  }
  for (const optim::Subject& subject : *in_state) {
    rows.push_back({subject.tensor, nullptr, count_bytes(*subject.tensor)});
  }
  sort_rows(rows, options.sort);
  const optim::RankParts parts(checkpoint);
  const Rows listed{checkpoint.catalog(), rows, options.limit, &parts};
  if (console.options().json) {
    if (options.sort == RowOrder::Stored) sort_rows(rows, RowOrder::Key);
    print_json_rows(console, listed);
    return 0;
  }
  warn_of_unmatched(filter, checkpoint.catalog(), console);
  print_rows(console, listed);
  if (console.options().quiet) return 0;
  const std::string logical =
      in_state->empty() ? "" : count_text(in_state->size(), "logical tensor") + ", ";
  std::string total = count_text(tensor_count(rows) - in_state->size(), "stored tensor") + ", " +
                      logical + count_text(rows.size() - tensor_count(rows), "object") + ", " +
                      size_text(total_bytes(rows));
  if (rows.size() > options.limit) total += ", " + std::to_string(options.limit) + " shown";
  console.out() << console.paint(Paint::Dim, total) << '\n';
  print_parts(console, checkpoint, parts);
  return 0;
}

}  // namespace

Command make_ls_command() {
  return make_command<LsOptions>(
      {.name = "ls",
       .description = "Lists tensors and objects: key, dtype, shape, bytes, chunks, where.",
       .examples = {"ckpt-inspect ls ckpt/",
                    "ckpt-inspect ls ckpt/ --include '*exp_avg*' --sort size --limit 10",
                    "ckpt-inspect ls model.pt --exclude 'optimizer.*' --json"},
       .quiet = "The rows alone"},
      run);
}

}  // namespace tools::inspect

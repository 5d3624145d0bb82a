// ckpt-inspect report: a checkpoint on one page that a browser shows without a network.
#include <filesystem>
#include <optional>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/text.h>
#include <common/whole_file.h>
#include <training/latest.h>
#include <training/lineage.h>
#include <training/megatron_folders.h>
#include <training/names_in_common.h>
#include <training/report_page.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"
#include "inspect/page/report_json.h"
#include "inspect/page_text.h"

namespace tools::inspect {
namespace {

struct ReportOptions {
  SourceOptions source;
  std::string b;
  ckpt::DiffOptions diff;
  std::string output;
  bool force = false;
  std::optional<uint64_t> sample_bytes;
  bool lineage = false;

  void declare(CLI::App& app) {
    source.declare(app);
    app.add_option("B", b, "Another checkpoint: the page shows what has changed from PATH to B")
        ->option_text(" ");
    add_value(app, "-o,--output FILE", output, "The page: one HTML file");
    app.add_flag("--force", force, "Replace FILE if it exists");
    add_value(app, "--sample SIZE", sample_bytes,
              "Read at most this much of the tensors (4G), and check the structure alone")
        ->transform(kBytes);
    app.add_flag("--lineage", lineage,
                 "Curves over all iterations of the root PATH, which are read");
    add_value(app, "--atol X", diff.atol, "Changes of B are red above atol + rtol * |b|")
        ->check(kTolerance);
    add_value(app, "--rtol Y", diff.rtol, "The default of both is 0: nothing is red")
        ->check(kTolerance);
  }
};

std::string verdict_text(const optim::ReportPage& report) {
  const ckpt::Findings& findings = report.verify.findings;
  std::string text = findings.damaged() ? "damaged" : "OK";
  if (report.is_sample) text += " (quick check)";
  return text + ", " + count_text(report.tensors.size(), "tensor") + ", " +
         size_text(report.looked_at_bytes) + " of " + size_text(report.tensor_bytes) + " looked at";
}

// Of B only what differs is known.
std::string comparison_text(const ReportOptions& options, const nlohmann::json& comparison) {
  return std::string(comparison.at("equal") ? "; equal to " : "; differs from ") +
         ckpt::escaped(options.b) + ", which was not verified";
}

optim::ReportPage read(const ReportOptions& options, const optim::OpenedTraining& checkpoint,
                       Console& console) {
  ProgressLine line(console, "reading");
  optim::ReportOptions report;
  report.sample_bytes = options.sample_bytes;
  report.execution = make_execute_options(console, line);
  return make_report(checkpoint, report);
}

nlohmann::json read_comparison(const ReportOptions& options, const optim::OpenedTraining& a,
                               const optim::ReportPage& report, Console& console) {
  ProgressLine line(console, "comparing");
  const optim::OpenedTraining b = optim::open_side(options.b, options.source.limits);
  ckpt::DiffOptions diff = options.diff;
  diff.execution = make_execute_options(console, line);
  const optim::Comparison comparison = compare_with(a, report, b, diff);
  return comparison_to_json({comparison, b, options.diff, report.tensors.size()});
}

void refuse_misuse(const ReportOptions& options) {
  const bool has_tolerance = options.diff.atol != 0 || options.diff.rtol != 0;
  if (has_tolerance && options.b.empty()) {
    refuse_usage("--atol and --rtol are for two checkpoints",
                 "ckpt-inspect report A B -o report.html");
  }
  if (options.sample_bytes && !options.b.empty()) {
    refuse_usage("--sample is for one checkpoint: a comparison reads both whole",
                 "ckpt-inspect diff A B --keys-only reads no tensor");
  }
}

// Of the root that PATH is.
nlohmann::json read_lineage(const ReportOptions& options, Console& console) {
  ProgressLine line(console, "reading all iterations");
  optim::LineageOptions lineage_options;
  lineage_options.limits = options.source.limits;
  lineage_options.execution = make_execute_options(console, line);
  const optim::Lineage lineage = optim::trace_lineage(options.source.path, lineage_options);
  warn_of_elsewhere(console, lineage.elsewhere);
  nlohmann::json document = lineage_to_json(lineage);
  document.erase("schema_version");
  return document;
}

// With --lineage a root without a tracker is opened at its newest complete iteration.
optim::OpenedTraining open(const ReportOptions& options) {
  SourceOptions source = options.source;
  const std::filesystem::path root = source.path;
  const bool has_tracker =
      ckpt::kind_at(root / optim::kMegatronFolders.tracker) != ckpt::EntryKind::Absent;
  if (options.lineage && !source.iteration && !has_tracker) {
    const auto latest = optim::find_latest(root, source.limits).latest;
    if (latest) source.path = latest->path.string();
  }
  return source.open();
}

int run(const ReportOptions& options, Console& console) {
  if (options.output.empty() && !console.options().json) {
    refuse_usage("-o FILE is required", "--json prints the data of the page instead");
  }
  refuse_misuse(options);
  if (!options.output.empty()) {
    refuse_output(options.output, options.source.path);
    if (!options.b.empty()) refuse_output(options.output, options.b);
    if (!options.force) refuse_existing(options.output);
    refuse_other_than_page(options.output);
  }
  const optim::OpenedTraining checkpoint = open(options);
  const optim::ReportPage report = read(options, checkpoint, console);
  nlohmann::json document =
      report_to_json({checkpoint, report.summary, checkpoint.was_root()}, report);
  if (!options.b.empty()) {
    document["comparison"] = read_comparison(options, checkpoint, report, console);
  }
  if (options.lineage) document["lineage"] = read_lineage(options, console);
  if (!options.output.empty()) {
    write_whole_file(options.output, report_html(printable_json(document.dump())), options.force);
  }
  if (console.options().json) {
    print_json(console, document);
  } else if (!console.options().quiet) {
    const std::string path = options.b.empty() ? "" : ckpt::escaped(options.source.path) + ": ";
    console.print_text(ckpt::escaped(options.output) + ": " + path + verdict_text(report) +
                       (options.b.empty() ? "" : comparison_text(options, document["comparison"])));
  }
  return 0;
}

}  // namespace

Command make_report_command() {
  return make_command<ReportOptions>(
      {.name = "report",
       .description = "Makes a page about a checkpoint: verdict, sizes, statistics of all tensors.",
       .examples = {"ckpt-inspect report ckpt/ -o report.html",
                    "ckpt-inspect report ckpt/ --sample 4G -o report.html --force",
                    "ckpt-inspect report old/ new/ --rtol 0.01 -o changes.html",
                    "ckpt-inspect report ckpt/ --lineage -o report.html"},
       .quiet = "Nothing",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect

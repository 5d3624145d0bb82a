// ckpt-inspect report: a checkpoint on one page that a browser shows without a network.
#include <optional>
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/text.h>
#include <optim/report_page.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/page_text.h"
#include "inspect/report_json.h"
#include "inspect/whole_file.h"

namespace tools::inspect {
namespace {

struct ReportOptions {
  SourceOptions source;
  std::string output;
  bool force = false;
  std::optional<uint64_t> sample_bytes;

  void declare(CLI::App& app) {
    source.declare(app);
    app.add_option("-o,--output", output, "The page: one HTML file")->option_text("FILE");
    app.add_flag("--force", force, "Replace FILE if it exists");
    app.add_option("--sample", sample_bytes,
                   "Read at most this much of the tensors (4G), and check the structure alone")
        ->transform(CLI::AsSizeValue(false))
        ->option_text("SIZE");
  }
};

std::string verdict_text(const optim::ReportPage& report) {
  const ckpt::Findings& findings = report.verify.findings;
  std::string text = findings.damaged() ? "damaged" : "OK";
  if (report.is_sample) text += " (quick check)";
  return text + ", " + count_text(report.tensors.size(), "tensor") + ", " +
         size_text(report.looked_at_bytes) + " of " + size_text(report.tensor_bytes) + " looked at";
}

optim::ReportPage read(const ReportOptions& options, const ckpt::Checkpoint& checkpoint,
                       Console& console) {
  ProgressLine line(console, "reading");
  optim::ReportOptions report;
  report.sample_bytes = options.sample_bytes;
  report.execution = make_execute_options(console, line);
  return make_report(checkpoint, report);
}

int run(const ReportOptions& options, Console& console) {
  if (options.output.empty() && !console.options().json) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "-o FILE is required",
                      "--json prints the data of the page instead");
  }
  if (!options.output.empty() && !options.force) refuse_existing(options.output);
  const ckpt::Checkpoint checkpoint = options.source.open();
  const optim::ReportPage report = read(options, checkpoint, console);
  const nlohmann::json document =
      report_to_json({checkpoint, report.summary, checkpoint.was_root()}, report);
  if (!options.output.empty()) {
    write_whole_file(options.output, optim::report_html(printable_json(document.dump())),
                     options.force);
  }
  if (console.options().json) {
    print_json(console, document);
  } else if (!console.options().quiet) {
    console.print_text(ckpt::escaped(options.output) + ": " + verdict_text(report));
  }
  return 0;
}

}  // namespace

Command make_report_command() {
  return make_command<ReportOptions>(
      {.name = "report",
       .description = "Makes a page about a checkpoint: verdict, sizes, statistics of all tensors.",
       .examples = {"ckpt-inspect report ckpt/ -o report.html",
                    "ckpt-inspect report ckpt/iter_0000003 -o report.html --force --sample 4G",
                    "ckpt-inspect report model.safetensors --json"},
       .quiet = "Nothing",
       .has_progress = true},
      run);
}

}  // namespace tools::inspect

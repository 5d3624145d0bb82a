// ckpt-inspect latest: the newest iteration of a root that is complete. Exit code 5 if none is.
#include <ostream>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <training/latest.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/facts.h"

namespace tools::inspect {
namespace {

struct LatestOptions {
  std::string root;
  ckpt::Limits limits;

  void declare(CLI::App& app) {
    add_place(app, "ROOT", root, kRootOfIterations);
    add_follow_links(app, limits);
  }
};

void print_report(Console& console, const optim::LatestReport& report) {
  for (const optim::SkippedIteration& skipped : report.skipped) {
    console.warn(ckpt::escaped(skipped.folder.path.filename().string()) +
                 (skipped.is_unsupported ? " is not read: " : " is not complete: ") +
                 skipped.reason);
  }
  console.out() << ckpt::escaped(report.latest->path.string()) << '\n';
}

void print_report_as_json(Console& console, const optim::LatestReport& report) {
  nlohmann::json document = json_document();
  document["iteration"] = report.latest->iteration;
  document["path"] = json_text(report.latest->path.string());
  document["skipped"] =
      json_list(report.skipped, [](const optim::SkippedIteration& skipped) -> nlohmann::json {
        return {{"iteration", skipped.folder.iteration},
                {"path", json_text(skipped.folder.path.string())},
                {"reason", json_text(skipped.reason)}};
      });
  document["elsewhere"] = json_texts(report.elsewhere);
  print_json(console, document);
}

// verify lists what it finds; what cannot be opened, or was not saved to its end, it cannot mend.
std::string hint_for(const optim::SkippedIteration& skipped) {
  if (skipped.is_found_by_verify) {
    return "ckpt-inspect verify " + ckpt::escaped(skipped.folder.path.string()) +
           " lists what is wrong with it";
  }
  return "that save did not finish, or files were lost on the way: copy the iteration again, or "
         "give another root";
}

ckpt::Error none_is_complete(const std::string& root, const optim::LatestReport& report) {
  const ckpt::Where where{.file = root, .key = {}};
  if (report.skipped.empty() && !report.elsewhere.empty()) {
    return {ckpt::ErrorCode::NotFound, where, "its iteration folders are links that lead out of it",
            "--follow-links looks at them"};
  }
  if (report.skipped.empty()) {
    return {
        ckpt::ErrorCode::NotFound, where,
        "has no iteration folders; expected folders such as iter_0000100, checkpoint-500, step-100",
        "give the folder that contains them"};
  }
  const optim::SkippedIteration& newest = report.skipped.front();
  const std::string name = ckpt::escaped(newest.folder.path.filename().string());
  const size_t count = report.skipped.size();
  if (newest.is_unsupported) {
    return {ckpt::ErrorCode::NotFound, where,
            "no iteration is known to be complete; " + name +
                ", the newest, is not read: " + newest.reason};
  }
  return {ckpt::ErrorCode::NotFound, where,
          (count == 1 ? "its only iteration, " + name + ", is not complete: "
                      : "none of its " + std::to_string(count) + " iterations is complete; " +
                            name + ", the newest: ") +
              newest.reason,
          hint_for(newest)};
}

int run(const LatestOptions& options, Console& console) {
  const optim::LatestReport report = optim::find_latest(options.root, options.limits);
  if (!report.latest) {
    throw none_is_complete(options.root, report);
  }
  warn_of_elsewhere(console, report.elsewhere);
  console.options().json ? print_report_as_json(console, report) : print_report(console, report);
  return 0;
}

}  // namespace

Command make_latest_command() {
  return make_command<LatestOptions>(
      {.name = "latest",
       .description = "Prints the newest iteration that is complete, whatever the tracker says; "
                      "exit code 5 if there is none.",
       .examples = {"ckpt-inspect latest ckpt/", "ckpt-inspect latest ckpt/ --quiet",
                    "ckpt-inspect latest ckpt/ --json"},
       .quiet = "The path alone"},
      run);
}

}  // namespace tools::inspect

// ckpt-inspect prune: removes iterations that are no longer needed.
#include <ckpt/error.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/table.h>
#include <common/text.h>
#include <training/prune.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"

namespace tools::inspect {
namespace {

struct PruneOptions {
  std::string root;
  optim::PruneOptions all;
  bool dry_run = false, acts = false;

  void declare(CLI::App& app) {
    app.add_option("ROOT", root, "Checkpoint root of Megatron: iter_0000100, ...")->required();
    add_value(app, "--keep-last N", all.keep_last, "Keep the newest N that are complete")
        ->required()
        ->check(kSize);
    add_value(app, "--keep-every K", all.keep_every, "Keep iterations that are multiples of K, too")
        ->check(kSize);
    add_value(app, "--drop-optimizer-before I", all.drop_optimizer_before,
              "Of kept iterations below I keep the model alone");
    auto* const dry = app.add_flag("--dry-run", dry_run, "Say what would be done, and its bytes");
    app.add_flag("--yes", acts, "Do it")->excludes(dry);
    add_follow_links(app, all.limits);
  }
};

constexpr const char* kWords[] = {"keep", "remove", "trim"};
constexpr const char* kDone[] = {"kept", "removed", "trimmed"};

void print_as_json(Console& console, const optim::PruneReport& report, bool acts) {
  nlohmann::json document = json_document();
  document["done"] = acts;
  document["freed_bytes"] = report.freed_bytes;
  document["cleaned"] = json_texts(report.cleaned);
  document["iterations"] =
      json_list(report.iterations, [](const optim::PrunedIteration& each) -> nlohmann::json {
        return {{"iteration", each.iteration},
                {"folder", json_text(each.name)},
                {"what", kWords[static_cast<size_t>(each.what)]},
                {"reason", json_text(each.reason)},
                {"bytes", each.bytes},
                {"freed_bytes", each.freed_bytes}};
      });
  print_json(console, document);
}

void print_as_text(Console& console, const optim::PruneReport& report, bool acts) {
  for (const std::string& name : report.cleaned) {
    console.print_text("removed " + ckpt::escaped(name) + ", which an interrupted run left");
  }
  for (const optim::PrunedIteration& each : report.iterations) {
    const auto what = static_cast<size_t>(each.what);
    std::string line = std::string((acts ? kDone : kWords)[what]) + " " + ckpt::escaped(each.name) +
                       ", " + size_text(each.bytes);
    if (each.what == optim::PrunedIteration::What::Trimmed) {
      line += ", frees " + size_text(each.freed_bytes);
    }
    if (!each.reason.empty()) line += ": " + each.reason;
    console.print_text(line);
  }
  console.print_text((acts ? "freed " : "would free ") + size_text(report.freed_bytes) +
                     (acts ? "" : "; --yes does it"));
}

int run(const PruneOptions& given, Console& console) {
  if (!given.dry_run && !given.acts) {
    refuse_usage("--dry-run or --yes is required",
                 "--dry-run says what would be removed; --yes removes it");
  }
  optim::PruneOptions options = given.all;
  options.acts = given.acts;
  ProgressLine progress(console, "writing");
  options.execute = make_execute_options(console, progress);
  const optim::PruneReport report = optim::prune(given.root, options);
  console.options().json ? print_as_json(console, report, given.acts)
                         : print_as_text(console, report, given.acts);
  return 0;
}

}  // namespace

Command make_prune_command() {
  return make_command<PruneOptions>(
      {.name = "prune",
       .description =
           "Removes iterations of a root that are no longer needed, or their optimizers; "
           "never the newest that is complete.",
       .examples =
           {"ckpt-inspect prune ckpt/ --keep-last 3 --dry-run",
            "ckpt-inspect prune ckpt/ --keep-last 1 --keep-every 1000 --yes",
            "ckpt-inspect prune ckpt/ --keep-last 2 --drop-optimizer-before 5000 --dry-run"},
       .has_progress = true},
      run);
}

}  // namespace tools::inspect

#include "common/conversion.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/root.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>

#include "common/console.h"
#include "common/option_values.h"
#include "common/progress.h"
#include "common/table.h"
#include "common/text.h"

namespace tools {
namespace {

using nlohmann::json;
using optim::RepairFinding;
using optim::RepairKind;
using Verdict = RepairFinding::Verdict;

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const RepairKind kind : optim::kRepairKinds) names.emplace_back(optim::name(kind));
  return names;
}

std::string kinds_text(const std::string& separator) { return joined(kind_names(), separator); }

const CLI::Validator kKinds(
    [](std::string& text) {
      const std::vector<std::string> names = kind_names();
      for (const std::string_view part : split(text, ",")) {
        if (std::ranges::find(names, part) != names.end()) continue;
        return "'" + ckpt::escaped(part) + "' is not a kind of repair: " + kinds_text(", ") +
               did_you_mean(part, names);
      }
      return std::string();
    },
    "");

// By Verdict.
constexpr const char* kVerdicts[] = {"sound", "mendable", "not_mendable"};
constexpr const char* kShownVerdicts[] = {"nothing to repair", "can be repaired",
                                          "cannot be repaired"};

void print_lost(const RepairFinding& repair, Console& console) {
  if (repair.lost.empty()) return;
  Table table({{.title = "lost masters and moments of", .can_shorten = true},
               {"elements", Align::Right},
               {"of", Align::Right}});
  for (const optim::LostElements& lost : repair.lost) {
    table.add_row({{ckpt::escaped(lost.param)},
                   {std::to_string(lost.lost_count)},
                   {std::to_string(lost.element_count)}});
  }
  table.print(console);
}

// --repair [KIND,...], --accept-loss and --like. `lists`: no kind was named.
void declare_repair(CLI::App& app, optim::RepairOptions& repair, bool& lists) {
  const auto choose = [&repair, &lists](const std::string& text) {
    if (text.empty()) {
      lists = true;
      return;
    }
    for (const std::string_view part : split(text, ",")) {
      for (const RepairKind kind : optim::kRepairKinds) {
        if (part == optim::name(kind) && !repair.wants(kind)) repair.kinds.push_back(kind);
      }
    }
  };
  const InGroup group(app, "Repair");
  app.add_option_function<std::string>("--repair", choose,
                                       "Repair known kinds of damage. Without KIND: list what can "
                                       "be repaired, and how certain that is, and write nothing")
      ->expected(0, 1)
      ->check(kKinds)
      ->option_text("[" + kinds_text(",") + "]");
  app.add_flag("--accept-loss", repair.accept_loss,
               "Repair even where elements are lost: masters become the weights, moments 0");
  add_value(app, "--like OTHER", repair.like, "For common-state: the checkpoint to take it from");
}

// What could be mended in a checkpoint.
void print_repairs(const std::vector<RepairFinding>& found, const std::string& source,
                   Console& console) {
  if (console.options().json) {
    json document = json_document();
    document["source"] = json_text(source);
    document["repairs"] = repairs_json(found);
    return print_json(console, document);
  }
  std::string kinds;
  bool has_losses = false, needs_other = false;
  for (const RepairFinding& repair : found) {
    console.print_text(std::string(optim::name(repair.kind)) + ": " +
                       kShownVerdicts[static_cast<size_t>(repair.verdict)] + ": " +
                       ckpt::escaped(repair.text));
    print_lost(repair, console);
    if (repair.verdict != Verdict::Mendable) continue;
    kinds += (kinds.empty() ? "" : ",") + std::string(optim::name(repair.kind));
    has_losses |= !repair.lost.empty();
    needs_other |= repair.kind == RepairKind::CommonState;
  }
  if (kinds.empty()) return;
  console.print_text("repair it with --repair " + kinds + (has_losses ? " --accept-loss" : "") +
                     (needs_other ? " --like OTHER" : ""));
}

int list_repairs(const ConversionOptions& options, Console& console) {
  const auto found =
      optim::find_repairs(options.source, {options.iteration, options.limits, options.repair.like});
  print_repairs(found, options.source, console);
  return 0;
}

int clean(const ConversionOptions& options, Console& console) {
  const std::string destination = options.place();
  bool removed = ckpt::Staging::clean(destination);
  if (!options.into.empty())
    removed = ckpt::clean_latest(options.into, optim::kMegatronFolders) || removed;
  if (console.options().json) {
    nlohmann::json document = json_document();
    document["destination"] = json_text(destination);
    document["removed"] = removed;
    print_json(console, document);
  } else {
    console.print_text(
        (removed ? "removed the partial output for " : "there is no partial output for ") +
        ckpt::escaped(destination));
  }
  return 0;
}

optim::ConvertReport run_or_hint(const Conversion& run, const ConversionOrder& order,
                                 const Console& console) {
  try {
    return run(order);
  } catch (ckpt::Error& error) {
    const ckpt::ConvertOptions& base = order.options.base;
    const bool is_alone = base.share.world_size == 1 && !base.dry_run;
    if (console.stop_signal() == 0 || !is_alone) throw;
    throw error.hinted(base.resume ? "the same command keeps the data files that are finished, and "
                                     "starts the others again"
                                   : "nothing was kept; with --resume from the start, data files "
                                     "that are finished are kept");
  }
}

// Without --rank, --world-size is that of the destination's grid.
bool is_size_of_grid(const ShareOptions& share) {
  return share.world_size && !share.rank && !share.distributed;
}

ConversionOptions with_size_of_grid(ConversionOptions options) {
  if (!is_size_of_grid(options.share)) return options;
  if (options.finish) {
    refuse_usage(
        "--world-size cannot be combined with --finish: the number of processes is "
        "recorded beside their parts",
        "leave it out; give the sizes of the destination with --dp, --tp, --pp");
  }
  options.sizes.sizes.world_size = std::exchange(options.share.world_size, std::nullopt);
  return options;
}

// `grids` receives the lines that are printed above the report: of a run that fails, none.
void set_megatron_options(const ConversionOptions& options, optim::ConvertOptions& all,
                          std::vector<std::string>& grids) {
  all.sizes = options.sizes.change();
  all.shards = options.sizes.shards;
  all.ownership = options.ownership;
  all.rng = options.sizes.rng;
  all.form = options.form.form;
  all.model_only = options.model_only;
  all.repair = options.repair;
  if (!options.sizes.model_rules.empty()) {
    all.rules = optim::read_model_rules(options.sizes.model_rules);
  }
  all.on_grids = [&grids](const optim::RunGrid& source, const optim::RunGrid& target,
                          bool has_experts) {
    if (source == target) return;
    grids = {"from  " + grid_text(source, has_experts), "to    " + grid_text(target, has_experts)};
  };
}

}  // namespace

void ConversionOptions::declare(CLI::App& app) {
  app.add_option("SOURCE", source, "Checkpoint root, iteration folder, DCP folder or file")
      ->required();
  app.add_option("DESTINATION", destination,
                 "What to write; must not exist (required, unless there is --into)");
  add_value(app, "--into ROOT", into, "Add an iteration to this checkpoint root instead");
  add_iteration(app, iteration, limits);
  add_choice<optim::OwnershipPolicy>(app, "--ownership", ownership,
                                     {{"ping-pong", optim::OwnershipPolicy::PingPong},
                                      {"balanced", optim::OwnershipPolicy::Balanced},
                                      {"lpt", optim::OwnershipPolicy::Lpt}})
      ->description(
          "Who owns which parameter; balanced and lpt: torch_dist only (default: ping-pong)");
  app.add_flag("--model-only", model_only,
               "Leave out the optimizer's state, which a .safetensors file would have, too");
  add_types(app, types);
  sizes.declare(app);
  form.declare(app);
  declare_repair(app, repair, lists_repairs);
  declare_writing(app);
  app.add_flag("--resume", resume,
               "Resume an interrupted run; if this run is interrupted, keep its finished parts for "
               "the next");
  app.add_flag("--clean", clean, "Remove the leftovers of an interrupted run, then exit");
  share.declare(app);
  share.declare_piece_size(app);
  app.get_option("--world-size")
      ->description(
          "Ranks of the run that the result is for; with --rank, the number of processes "
          "that share this conversion");
  app.add_flag("--finish", finish, "Publish the combined output of all processes, then exit")
      ->group("Several processes");
}

void ConversionOptions::declare_writing(CLI::App& app) {
  app.add_flag("--strict", strict, "Fail if anything cannot be carried over or proven");
  app.add_flag("--force", force, "Replace an existing destination");
  add_value(
      app, "--max-memory BYTES", max_memory_bytes,
      "Approximate limit on resident memory, such as 8G or 512M; buffers use at most 256M of it")
      ->transform(kBytes);
  app.add_flag("--dry-run", dry_run, "Show the plan, write nothing");
  app.add_flag("--verify", verify,
               "Before publishing, read the result back, verify it and compare it with the source");
}

void ConversionOptions::declare_result(CLI::App& app) {
  add_value(app, "-o,--output OUT", destination, "What to write; must not exist")->required();
  add_follow_links(app, limits);
  declare_writing(app);
}

std::string ConversionOptions::place() const {
  if (into.empty()) return destination;
  const auto opened = optim::open_checkpoint(source, {iteration, limits});
  return optim::place_in_root(into, opened).string();
}

ToolInfo info_of_writing(ToolInfo info) {
  info.quiet = "Only what was left out or not carried";
  info.verbose = "The files that are written";
  info.has_progress = true;
  return info;
}

int run_conversion(const Conversion& run, const ConversionOptions& given, optim::ConvertOptions all,
                   Console& console) {
  const ConversionOptions options = with_size_of_grid(given);
  if (options.lists_repairs) return list_repairs(options, console);
  const bool adds = !options.into.empty();
  if (options.destination.empty() && !adds) {
    refuse_usage("a DESTINATION is required");
  }
  if (adds && !options.destination.empty()) {
    refuse_usage("--into cannot be combined with a DESTINATION");
  }
  if (options.clean && options.dry_run) {
    refuse_usage("--clean cannot be combined with --dry-run");
  }
  if (options.clean) return clean(options, console);
  std::vector<std::string> grids;
  set_megatron_options(options, all, grids);
  ckpt::ConvertOptions& base = all.base;
  ProgressLine progress(console, "writing");
  base.execute = make_execute_options(console, progress);
  base.execute.process_bytes_max = options.max_memory_bytes;
  base.types = options.types;
  base.iteration = options.iteration;
  base.limits = options.limits;
  base.strict = options.strict;
  base.force = options.force;
  base.dry_run = options.dry_run;
  base.verify = options.verify;
  base.resume = options.resume;
  base.finish = options.finish;
  base.share = options.share.share();
  progress.leave_terminal_if(options.share.distributed && base.share.rank != 0);
  all.into = adds;
  const ConversionOrder order{options.source, options.target(), std::move(all)};
  const optim::ConvertReport report = run_or_hint(run, order, console);
  for (const std::string& warning : report.warnings) console.warn(warning);
  if (!console.options().json && !console.options().quiet) {
    for (const std::string& line : grids) console.print_text(line);
  }
  print_conversion(console, options, report);
  return 0;
}

json repairs_json(const std::vector<RepairFinding>& repairs) {
  const auto lost_json = [](const optim::LostElements& lost) -> json {
    return {{"parameter", json_text(lost.param)},
            {"elements", lost.lost_count},
            {"of", lost.element_count}};
  };
  return json_list(repairs, [&](const RepairFinding& repair) -> json {
    return {{"kind", optim::name(repair.kind)},
            {"verdict", kVerdicts[static_cast<size_t>(repair.verdict)]},
            {"text", json_text(repair.text)},
            {"compared", repair.compared_count},
            {"right", repair.right_count},
            {"lost", json_list(repair.lost, lost_json)}};
  });
}

void print_mended(const std::vector<RepairFinding>& repairs, Console& console) {
  for (const RepairFinding& repair : repairs) {
    const bool is_mended = repair.verdict == Verdict::Mendable;
    console.print_text("repair " + std::string(optim::name(repair.kind)) + ": " +
                       (is_mended ? "" : "nothing to repair: ") + ckpt::escaped(repair.text));
    print_lost(repair, console);
  }
}

}  // namespace tools

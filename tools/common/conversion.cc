#include <common/conversion.h>

#include <ostream>

#include <ckpt/error.h>
#include <common/console.h>
#include <common/json.h>
#include <common/option_values.h>
#include <common/progress.h>
#include <common/table.h>
#include <common/text.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

using nlohmann::json;

json losses_json(const std::vector<ckpt::NotCarried>& losses) {
  json list = json::array();
  for (const auto& [what, reason] : losses) {
    list.push_back({{"what", json_text(what)}, {"reason", json_text(reason)}});
  }
  return list;
}

json ambiguous_json(const std::vector<optim::AmbiguousParam>& params) {
  json list = json::array();
  for (const auto& param : params) {
    json others = json::array();
    for (const std::string& name : param.also_fits) others.push_back(json_text(name));
    list.push_back({{"key", json_text(param.name)}, {"also_fits", others}});
  }
  return list;
}

const char* outcome_name(ckpt::Outcome outcome) {
  switch (outcome) {
    case ckpt::Outcome::Planned: return "planned";
    case ckpt::Outcome::PartWritten: return "part_written";
    case ckpt::Outcome::Published: return "published";
    case ckpt::Outcome::AlreadyPublished: return "already_published";
  }
  return "";
}

json report_json(const ConversionOptions& options, const optim::ConvertReport& report) {
  json document = json_document();
  document["destination"] = json_text(options.target());
  document["linked_bytes"] = report.linked_bytes;
  document["dry_run"] = options.dry_run;
  document["outcome"] = outcome_name(report.outcome);
  document["kept_bytes"] = report.kept_bytes;
  document["verified_bytes"] = report.verified_bytes;
  document["source_format"] = name(report.source_format);
  document["target_format"] = name(report.target_format);
  document["payload_bytes"] = report.plan.payload_bytes;
  document["total_bytes"] = report.plan.total_bytes;
  if (options.dry_run) document["peak_memory_bytes"] = report.peak_memory_bytes;
  document["files"] = json::array();
  for (const ckpt::PlannedFile& file : report.plan.files) {
    document["files"].push_back({{"path", json_text(file.path)}, {"bytes", file.count_bytes}});
  }
  document["not_carried"] = losses_json(report.not_carried);
  document["warnings"] = json::array();
  for (const std::string& warning : report.warnings) {
    document["warnings"].push_back(json_text(warning));
  }
  if (report.layer_wise) {
    document["source_data_parallel_size"] = report.source_data_parallel;
    document["target_data_parallel_size"] = report.target_data_parallel;
    document["ambiguous"] = ambiguous_json(report.ambiguous);
  }
  return document;
}

void print_files(const ckpt::Plan& plan, Console& console) {
  Table table({{.title = "file", .can_shorten = true}, {"bytes", Align::Right}});
  for (const ckpt::PlannedFile& file : plan.files) {
    const std::string path = file.path.empty() ? "(the file)" : file.path;
    table.add_row({{ckpt::escaped(path)}, {size_text(file.count_bytes)}});
  }
  table.print(console);
}

const char* opening_of(ckpt::Outcome outcome, bool is_share) {
  switch (outcome) {
    case ckpt::Outcome::Planned: return "would write ";
    case ckpt::Outcome::PartWritten: return "wrote this process's part of ";
    case ckpt::Outcome::Published: return "wrote ";
    case ckpt::Outcome::AlreadyPublished:
      return is_share ? "nothing to do, the processes of this share wrote "
                      : "nothing to do, an earlier run wrote ";
  }
  return "";
}

void print_text(const ConversionOptions& options, const optim::ConvertReport& report,
                Console& console) {
  if (options.dry_run || console.options().verbose) print_files(report.plan, console);
  std::string what =
      std::string(name(report.source_format)) + " -> " + std::string(name(report.target_format));
  if (report.layer_wise) {
    what += ", data parallel " + std::to_string(report.source_data_parallel) + " -> " +
            std::to_string(report.target_data_parallel);
  }
  const bool is_share = options.share.share().world_size > 1;
  console.out() << opening_of(report.outcome, is_share) << ckpt::escaped(options.target()) << ": "
                << what << ", " << count_text(report.plan.files.size(), "file") << ", "
                << size_text(report.plan.total_bytes);
  if (report.peak_memory_bytes != 0) {
    console.out() << ", about " << size_text(report.peak_memory_bytes) << " of memory";
  }
  console.out() << "\n";
  if (report.outcome == ckpt::Outcome::PartWritten) {
    console.out() << "this part: " << size_text(report.stats.written_bytes + report.kept_bytes)
                  << "\n";
  }
  if (report.kept_bytes != 0) {
    console.out() << "kept " << size_text(report.kept_bytes) << " of an interrupted run\n";
  }
  if (report.linked_bytes != 0) {
    console.out() << (options.dry_run ? "would link " : "linked ") << size_text(report.linked_bytes)
                  << " of the source\n";
  }
  if (report.verified_bytes != 0) {
    const bool is_published = report.outcome == ckpt::Outcome::Published;
    console.out() << "read back " << size_text(report.verified_bytes) << ": as written"
                  << (is_published ? ", passes verify, equal to the source\n" : "\n");
  }
  for (const auto& [lost, reason] : report.not_carried) {
    console.out() << "not carried: " << ckpt::escaped(lost) << ": " << reason << "\n";
  }
  for (const auto& param : report.ambiguous) {
    console.out() << "not proven by content: " << ckpt::escaped(param.name)
                  << ": its master rounds to the weight of " << ckpt::escaped(param.also_fits[0])
                  << (param.also_fits.size() > 1 ? " and others" : "") << ", too\n";
  }
}

}  // namespace

void ConversionOptions::declare(CLI::App& app) {
  app.add_option("SOURCE", source, "Checkpoint root, iteration folder, DCP folder or file")
      ->required();
  auto* const given = app.add_option("DESTINATION", destination, "What to write; must not exist");
  app.add_option("--into", into, "Add an iteration to this checkpoint root instead")
      ->option_text("ROOT")
      ->excludes(given);
  app.add_option("--iteration", iteration, "Iteration of a checkpoint root");
  add_follow_links(app, limits);
  app.add_option("--ownership", ownership, "Who owns which parameter (torch_dist only)")
      ->check(CLI::IsMember({"ping-pong", "balanced"}))
      ->capture_default_str();
  app.add_flag("--strict", strict, "Refuse when something cannot be carried or proven");
  app.add_flag("--force", force, "Replace an existing destination");
  app.add_option("--max-memory", max_memory_bytes,
                 "Resident memory of the process, about (8G, 512M); buffers take no more than 256M")
      ->transform(CLI::AsSizeValue(false))
      ->option_text("BYTES");
  auto* const dry = app.add_flag("--dry-run", dry_run, "Show the plan, write nothing");
  app.add_flag("--verify", verify,
               "Before publishing, read the result back, verify it and compare it with the source");
  app.add_flag("--resume", resume,
               "Continue what an interrupted run left, and leave what is finished to the next");
  app.add_flag("--clean", clean, "Remove what an interrupted run left, and end")->excludes(dry);
  share.declare(app);
  share.declare_piece_size(app);
  app.add_flag("--finish", finish, "Publish what the processes of a share have left, and end")
      ->group("Several processes");
}

optim::OwnershipPolicy ConversionOptions::policy() const {
  return ownership == "balanced" ? optim::OwnershipPolicy::Balanced
                                 : optim::OwnershipPolicy::PingPong;
}

namespace {

std::string place_of(const ConversionOptions& options) {
  if (options.into.empty()) return options.destination;
  const auto source = ckpt::Checkpoint::open(options.source, {options.iteration, options.limits});
  return optim::place_in_root(options.into, source).string();
}

int clean(const ConversionOptions& options, Console& console) {
  const std::string destination = place_of(options);
  bool removed = ckpt::Staging::clean(destination);
  if (!options.into.empty()) removed = ckpt::clean_latest(options.into) || removed;
  if (console.options().json) {
    json document = json_document();
    document["destination"] = json_text(destination);
    document["removed"] = removed;
    print_json(console, document);
  } else {
    console.out() << (removed ? "removed what an interrupted run left of "
                              : "no interrupted run has left anything of ")
                  << ckpt::escaped(destination) << "\n";
  }
  return 0;
}

}  // namespace

int run_conversion(Conversion run, const ConversionOptions& options,
                   optim::ConvertOptions conversion, Console& console) {
  const bool adds = !options.into.empty();
  if (options.destination.empty() && !adds) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "a DESTINATION is required");
  }
  if (options.clean) return clean(options, console);
  ProgressLine progress(console, "writing");
  conversion.execute = make_execute_options(console, progress);
  conversion.execute.process_bytes_max = options.max_memory_bytes;
  conversion.iteration = options.iteration;
  conversion.limits = options.limits;
  conversion.ownership = options.policy();
  conversion.strict = options.strict;
  conversion.force = options.force;
  conversion.dry_run = options.dry_run;
  conversion.verify = options.verify;
  conversion.resume = options.resume;
  conversion.finish = options.finish;
  conversion.into = adds;
  conversion.share = options.share.share();
  const optim::ConvertReport report = run(options.source, options.target(), conversion);
  for (const std::string& warning : report.warnings) console.warn(warning);
  if (console.options().json) {
    print_json(console, report_json(options, report));
  } else {
    print_text(options, report, console);
  }
  return 0;
}

}  // namespace tools

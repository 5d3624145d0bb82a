#include "common/source_options.h"

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <set>
#include <utility>

#include <common/option_values.h>
#include <common/text.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <training/contents.h>
#include <training/listing.h>
#include <training/megatron_folders.h>

namespace tools {
namespace {

// What is listed then is what .metadata, an index, or the other files say.
void warn_of_lacking_files(const optim::OpenedTraining& checkpoint, Console& console) {
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const bool is_dist = catalog.format == ckpt::Format::TorchDist;
  std::string lines;
  size_t count = 0;
  std::set<std::string> named;
  const auto add = [&](const std::string& path, const std::string& lack) {
    if (!named.insert(path).second) return;
    lines += (++count == 1 ? "" : ", ") + ckpt::escaped(path) + " " + lack;
  };
  for (const ckpt::FileEntry* file : lacking_files(catalog)) add(file->path, file->lack);
  for (const std::string& path : optim::missing_files(checkpoint)) {
    if (path != optim::kMegatronFolders.backend_file) add(path, "is missing");
  }
  if (count == 0) return;
  console.warn("incomplete: " + lines +
               (is_dist ? "; listed is what .metadata says"
                        : "; tensors that are in such files alone are not listed"));
}

// common.pt opens as the file that it is; whoever named it may have wanted the checkpoint.
void warn_of_common_state(const std::string& named, Console& console) {
  const std::filesystem::path path(named);
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (path.filename() != "common.pt" ||
      ckpt::kind_at(folder / ".metadata") == ckpt::EntryKind::Absent) {
    return;
  }
  console.warn("this is the common state of a torch_dist checkpoint: open " +
               ckpt::escaped(folder.string()) + " for its tensors");
}

void warn(const std::vector<optim::UnmatchedPattern>& patterns, Console& console) {
  for (const auto& [typed, nearest] : patterns) {
    console.warn("'" + ckpt::escaped(typed) + "' matches no key" +
                 (nearest ? "; did you mean '" + *nearest + "'?" : ""));
  }
}

constexpr int kProcessesMax = 1 << 20;

struct Launcher {
  const char* rank;
  const char* world_size;
};
// torchrun before Slurm: it may run inside of one of Slurm's tasks. Kubernetes names no count:
// the job's manifest sets it, as docs/distributed.md shows, or --world-size says it.
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
    {"JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"},
};

using RankAndSize = std::pair<uint32_t, uint32_t>;

RankAndSize checked(uint32_t rank, uint32_t world_size) {
  if (world_size == 0 || rank >= world_size || world_size > kProcessesMax) {
    refuse_usage("rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
                 " processes");
  }
  return {rank, world_size};
}

RankAndSize of_launcher(std::optional<uint32_t> world_size) {
  for (const Launcher& launcher : kLaunchers) {
    const bool counts = world_size.has_value() || variable(launcher.world_size);
    if (!variable(launcher.rank) || !counts) continue;
    const auto found = static_cast<uint32_t>(number_variable(launcher.rank, 0, kProcessesMax - 1));
    if (world_size) return checked(found, *world_size);
    return checked(found,
                   static_cast<uint32_t>(number_variable(launcher.world_size, 1, kProcessesMax)));
  }
  refuse_usage(
      "no launcher has set its variables: RANK and WORLD_SIZE, or those of Open MPI, PMI, Slurm "
      "or Kubernetes",
      "--rank R --world-size W say the same");
}

}  // namespace

void SourceOptions::declare(CLI::App& app, const std::string& name) {
  add_place(app, name, path, kAnyCheckpoint);
  add_iteration(app, iteration, limits);
}

optim::OpenedTraining SourceOptions::open() const {
  optim::OpenedTraining checkpoint =
      optim::open_checkpoint(path, {.iteration = iteration, .limits = limits});
  refuse_missing_files(checkpoint);
  return checkpoint;
}

void refuse_missing_files(const optim::OpenedTraining& checkpoint) {
  std::vector<std::string> missing = optim::missing_files(checkpoint);
  std::erase(missing, optim::kMegatronFolders.backend_file);  // nothing is read from it
  if (missing.empty()) return;
  std::string problem = "this file of the checkpoint is missing";
  for (size_t i = 1; i < missing.size(); ++i) {
    problem += (i == 1 ? "; so is " : ", ") + ckpt::escaped(missing[i]);
  }
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {checkpoint.shown_name(missing[0])}, problem,
                    "the checkpoint is incomplete: copy what is missing again")
      .mark_incomplete();
}

std::string few_of(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 6;
  std::string text = joined(std::views::take(names, kNamed), ", ", ckpt::escaped);
  if (names.size() > kNamed) text += ", and " + count_text(names.size() - kNamed, "more file");
  return text;
}

bool note_files_beside(const optim::OpenedTraining& checkpoint, Console& console) {
  if (optim::is_megatron(checkpoint)) return false;
  std::vector<std::string> names;
  for (const ckpt::FileBeside& file : files_beside(checkpoint)) {
    names.push_back(file.shown + (file.is_folder ? "/" : ""));
  }
  if (names.empty()) return false;
  console.note("not read of " + ckpt::escaped(checkpoint.folder().string()) + ": " + few_of(names));
  return true;
}

optim::OpenedTraining SourceOptions::open_quietly() const {
  SourceOptions listing = *this;
  listing.limits.allow_missing_data = true;
  return optim::open_checkpoint(path, {.iteration = iteration, .limits = listing.limits});
}

optim::OpenedTraining SourceOptions::open_to_list(Console& console) const {
  optim::OpenedTraining checkpoint = open_quietly();
  warn_of_common_state(path, console);
  warn_of_lacking_files(checkpoint, console);
  note_files_beside(checkpoint, console);
  return checkpoint;
}

std::vector<std::string> missing_files(const ckpt::Catalog& catalog) {
  std::vector<std::string> missing;
  for (const ckpt::FileEntry& file : catalog.files) {
    if (file.is_missing) missing.push_back(file.path);
  }
  std::ranges::sort(missing);
  return missing;
}

void KeyFilter::declare(CLI::App& app) {
  add_value(app, "--include GLOB", include,
            "Only keys that match; `*` crosses dots and slashes; repeatable")
      ->allow_extra_args(false);
  add_value(app, "--exclude GLOB", exclude, "Skip keys that match; repeatable; FILE:KEY also works")
      ->allow_extra_args(false);
}

std::string KeyFilter::text() const {
  std::string text;
  const auto add = [&](const char* option, const std::vector<std::string>& patterns) {
    for (const std::string& typed : patterns) {
      text += (text.empty() ? "" : " ") + std::string(option) + " '" + ckpt::escaped(typed) + "'";
    }
  };
  add("--include", include);
  add("--exclude", exclude);
  return text;
}

void warn_of_unmatched(const KeyFilter& filter, const ckpt::Catalog& catalog, Console& console) {
  warn(optim::unmatched_patterns(catalog, filter.selection()), console);
}

void select(const std::vector<ckpt::Inventory*>& inventories, const KeyFilter& filter,
            Console& console) {
  if (filter.is_everything()) return;
  const optim::SelectedEntries selected = optim::select_entries(inventories, filter.selection());
  warn(selected.unmatched, console);
  if (selected.is_any) return;
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                    "no tensor or object is selected by " + filter.text(),
                    "ckpt-inspect ls lists the keys");
}

void ShareOptions::declare(CLI::App& app) {
  const InGroup group(app, "Several processes");
  app.add_flag("--distributed", distributed,
               "Do this process's share; rank and size come from the variables of torchrun, Open "
               "MPI, PMI, Slurm or Kubernetes");
  add_value(app, "--rank N", rank, "Do the share of the process with rank N")->check(kCount);
  add_value(app, "--world-size N", world_size, "Total number of processes")->check(kCount);
}

void ShareOptions::declare_piece_size(CLI::App& app) {
  add_value(app, "--piece-size BYTES", piece_bytes_min,
            "Split longer files into pieces of at least this size (default: 256M); "
            "all processes must agree")
      ->transform(kBytes)
      ->group("Several processes");
}

ckpt::Share ShareOptions::share() const {
  RankAndSize share(0, 1);
  if (distributed) {
    if (rank) refuse_usage("--distributed asks the launcher for the rank; --rank says it");
    share = of_launcher(world_size);
  } else {
    if (rank.has_value() != world_size.has_value())
      refuse_usage("--rank and --world-size go together");
    if (rank) share = checked(*rank, *world_size);
  }
  return {share.first, share.second, piece_bytes_min};
}

std::string share_text(ckpt::Share share) {
  return "share " + std::to_string(share.rank) + " of " + std::to_string(share.world_size);
}

nlohmann::json share_json(ckpt::Share share) {
  return {{"rank", share.rank}, {"world_size", share.world_size}};
}

}  // namespace tools

#include "args/iteration_names.h"

#include <algorithm>
#include <iterator>

#include <ckpt/error.h>
#include <ckpt/text.h>
#include <training/megatron_folders.h>

namespace optim {
namespace {

// A word, and behind it the number of steps, or of what else the writer counts.
struct NamingRow {
  std::string_view prefix, writer;
  bool counts_steps;  // NamedIteration
  size_t digits = 0;  // FolderConvention::iteration_digits
  std::span<const std::string_view> below = {};
};

constexpr std::string_view kActors[] = {"actor/dist_ckpt", "actor"};
constexpr std::string_view kCritics[] = {"critic/dist_ckpt", "critic"};
constexpr NamingRow kVerl = {"global_step_", "verl", true, 0, kActors};

constexpr NamingRow kNamings[] = {
    {kMegatronFolders.iteration_prefix, kMegatronFolders.framework, false,
     kMegatronFolders.iteration_digits},
    {"checkpoint-", "Hugging Face Trainer", true},
    {"checkpoint_", "Accelerate", false},  // counts its saves
    {"step-", "torchtitan", true},
    {"step_", "Accelerate's scripts", false},
    {"epoch_", "Accelerate's scripts, torchtune", false},
    kVerl,
    {"global_step", "DeepSpeed", true},
};

// libckpt's way to say it, of which Megatron's is one.
ckpt::FolderConvention convention_of(const NamingRow& row) {
  ckpt::FolderConvention convention = kMegatronFolders;
  convention.framework = row.writer;
  convention.iteration_prefix = row.prefix;
  convention.iteration_digits = row.digits;
  return convention;
}

void add(const std::filesystem::path& root, const ckpt::Limits& limits, const NamingRow& row,
         NamedIterations& found) {
  const ckpt::FolderConvention convention = convention_of(row);
  std::vector<ckpt::IterationFolder> folders = ckpt::list_iterations(root, convention, limits);
  std::ranges::reverse(folders);
  for (ckpt::IterationFolder& folder : folders) {
    found.folders.push_back({std::move(folder), row.writer, row.counts_steps, row.below});
  }
  if (limits.follow_links) return;
  std::ranges::move(ckpt::iterations_elsewhere(root, convention),
                    std::back_inserter(found.elsewhere));
}

std::filesystem::path first_of(const std::filesystem::path& folder,
                               std::span<const std::string_view> below) {
  for (const std::string_view name : below) {
    const std::filesystem::path path = folder / name;
    if (ckpt::kind_at(path) == ckpt::EntryKind::Folder) return path;
  }
  return folder;
}

// Also of ".", and of a path that ends in a slash.
std::filesystem::path whole_path(const std::filesystem::path& folder) {
  return std::filesystem::absolute(folder / "").lexically_normal().parent_path();
}

// Who opens one model of two would take it for all that was saved.
std::filesystem::path only_path_of(const std::filesystem::path& folder) {
  const std::filesystem::path actor = first_of(folder, kActors),
                              critic = first_of(folder, kCritics);
  if (actor == folder || critic == folder) return actor;
  throw ckpt::Error(
      ckpt::ErrorCode::InvalidArgument, {.file = folder.string(), .key = {}},
      "holds two checkpoints of verl, actor and critic",
      "open " + ckpt::escaped(actor.string()) + " or " + ckpt::escaped(critic.string()));
}

}  // namespace

NamedIterations find_iterations(const std::filesystem::path& root, const ckpt::Limits& limits) {
  NamedIterations found;
  for (const NamingRow& row : kNamings) add(root, limits, row, found);
  return found;
}

std::filesystem::path path_of(const NamedIteration& named) {
  return first_of(named.folder.path, named.below);
}

std::optional<int64_t> steps_in_name(const std::filesystem::path& folder) {
  for (const NamingRow& row : kNamings) {
    std::filesystem::path whole = whole_path(folder);
    const auto is_below = [&](std::string_view below) {
      return whole.string().ends_with("/" + std::string(below));
    };
    const auto below = std::ranges::find_if(row.below, is_below);
    if (below != row.below.end()) {
      const std::filesystem::path steps(*below);
      for (auto left = std::distance(steps.begin(), steps.end()); left > 0; --left) {
        whole = whole.parent_path();
      }
    }
    const std::string name = whole.filename();
    if (!row.counts_steps || !name.starts_with(row.prefix)) continue;
    const auto number = ckpt::number_in<int64_t>(std::string_view(name).substr(row.prefix.size()));
    if (number && *number >= 0) return number;
  }
  return std::nullopt;
}

bool is_of_megatron(const NamedIteration& named) {
  return named.writer == kMegatronFolders.framework;
}

std::filesystem::path find_iteration(const std::filesystem::path& root, int64_t iteration,
                                     const ckpt::Limits& limits) {
  if (ckpt::kind_at(root) != ckpt::EntryKind::Folder) return root;
  const std::vector<NamedIteration> all = find_iterations(root, limits).folders;
  if (all.empty() || std::ranges::any_of(all, is_of_megatron)) return root;
  const NamedIteration* found = nullptr;
  for (const NamedIteration& named : all) {
    if (named.folder.iteration != iteration) continue;
    if (found != nullptr) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = root.string(), .key = {}},
                        "two folders have the number " + std::to_string(iteration) + ": " +
                            ckpt::escaped(found->folder.path.filename().string()) + " and " +
                            ckpt::escaped(named.folder.path.filename().string()),
                        "give one of them in place of the root");
    }
    found = &named;
  }
  if (found != nullptr && found->writer == kVerl.writer) return only_path_of(found->folder.path);
  if (found != nullptr) return path_of(*found);
  throw ckpt::Error(
      ckpt::ErrorCode::NotFound, {.file = root.string(), .key = {}},
      "the root holds no iteration " + std::to_string(iteration),
      "the last one that it holds is " + ckpt::escaped(all.back().folder.path.filename().string()));
}

std::filesystem::path find_step_of_verl(const std::filesystem::path& path,
                                        const ckpt::Limits& limits) {
  if (ckpt::kind_at(path) != ckpt::EntryKind::Folder) return path;
  if (whole_path(path).filename().string().starts_with(kVerl.prefix)) return only_path_of(path);
  const ckpt::FolderConvention convention = convention_of(kVerl);
  if (ckpt::kind_at(path / convention.tracker) == ckpt::EntryKind::Absent) return path;
  const std::vector<ckpt::IterationFolder> steps = ckpt::list_iterations(path, convention, limits);
  const auto latest = steps.empty() ? std::nullopt : ckpt::latest_iteration(path, convention);
  if (!latest || !ckpt::list_iterations(path, kMegatronFolders, limits).empty()) return path;
  const auto found = std::ranges::find(steps, *latest, &ckpt::IterationFolder::iteration);
  if (found != steps.end()) return only_path_of(found->path);
  const std::string name = std::string(kVerl.prefix) + std::to_string(*latest);
  throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = (path / name).string(), .key = {}},
                    "the folder that " + std::string(convention.tracker) +
                        " names is missing, or leads out of the root",
                    "the newest that it holds is " +
                        ckpt::escaped(steps[0].path.filename().string()) + ": --iteration " +
                        std::to_string(steps[0].iteration));
}

std::string megatron_folder(int64_t iteration) {
  const std::string digits = std::to_string(iteration);
  const size_t zeros = kMegatronFolders.iteration_digits -
                       std::min<size_t>(kMegatronFolders.iteration_digits, digits.size());
  return std::string(kMegatronFolders.iteration_prefix) + std::string(zeros, '0') + digits;
}

std::string iteration_names() {
  std::string text;
  for (const NamingRow& row : kNamings) {
    const std::string zeros(row.digits > 3 ? row.digits - 3 : 0, '0');
    text += (text.empty() ? "" : ", ") + std::string(row.prefix) + zeros + "100";
  }
  return text;
}

}  // namespace optim

#include "common/source_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <set>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <common/console.h>
#include <common/option_values.h>
#include <common/text.h>
#include <training/contents.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>

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
  std::error_code unknown;
  if (path.filename() != "common.pt" || !std::filesystem::exists(folder / ".metadata", unknown)) {
    return;
  }
  console.warn("this is the common state of a torch_dist checkpoint: open " +
               ckpt::escaped(folder.string()) + " for its tensors");
}

}  // namespace

void SourceOptions::declare(CLI::App& app, const std::string& name) {
  app.add_option(name, path,
                 "Checkpoint root, iteration or DCP folder, torch.save or safetensors file")
      ->required()
      ->option_text(" ");
  app.add_option("--iteration", iteration,
                 "Iteration of a checkpoint root (default: the one that "
                 "latest_checkpointed_iteration.txt names)")
      ->check(kCount)
      ->option_text("N");
  add_follow_links(app, limits);
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

void note_files_beside(const optim::OpenedTraining& checkpoint, Console& console) {
  constexpr size_t kNamed = 6;
  if (optim::is_megatron(checkpoint)) return;
  const std::vector<ckpt::FileBeside> beside = files_beside(checkpoint);
  if (beside.empty()) return;
  std::string names;
  for (size_t i = 0; i < std::min(beside.size(), kNamed); ++i) {
    names +=
        (i == 0 ? "" : ", ") + ckpt::escaped(beside[i].shown) + (beside[i].is_folder ? "/" : "");
  }
  if (beside.size() > kNamed) names += ", and " + count_text(beside.size() - kNamed, "more file");
  console.note("not read of " + ckpt::escaped(checkpoint.folder().string()) + ": " + names);
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

}  // namespace tools

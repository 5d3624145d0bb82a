#include "common/source_options.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <ckpt/error.h>
#include <common/console.h>
#include <common/option_values.h>
#include <common/text.h>
#include <optim/megatron_folders.h>

namespace tools {
namespace {

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

ckpt::Checkpoint SourceOptions::open() const {
  return optim::open_checkpoint(path, {.iteration = iteration, .limits = limits});
}

ckpt::Checkpoint SourceOptions::open_quietly() const {
  SourceOptions listing = *this;
  listing.limits.allow_missing_data = true;
  return listing.open();
}

ckpt::Checkpoint SourceOptions::open_to_list(Console& console) const {
  ckpt::Checkpoint checkpoint = open_quietly();
  warn_of_common_state(path, console);
  const std::vector<std::string> missing = missing_files(checkpoint.catalog());
  if (!missing.empty()) {
    console.warn(count_text(missing.size(), "data file") +
                 (missing.size() == 1 ? " is missing, " : " are missing, first ") +
                 ckpt::escaped(missing.front()) + ": listed is what .metadata says");
  }
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

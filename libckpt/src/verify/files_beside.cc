// What lies beside a checkpoint's own files: known by its name, or listed as unknown.
#include <ckpt/files_beside.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include <ckpt/error.h>
#include <ckpt/folder_convention.h>
#include <ckpt/glob.h>

#include "base/text.h"
#include "format/format.h"
#include "format/joined/deepspeed_files.h"
#include "verify/verify_files.h"

namespace ckpt {
namespace {

// Hugging Face's Trainer and models, Accelerate's save_state, PEFT, DeepSpeed.
constexpr Companion kKnown[] = {
    {"optimizer.pt", "the optimizer's state, as the Trainer of transformers saves it"},
    {"optimizer*.bin", "an optimizer's state, as Accelerate saves it"},
    {"scheduler.pt", "the learning rate scheduler's state"},
    {"scheduler*.bin", "a learning rate scheduler's state, as Accelerate saves it"},
    {"scaler.pt", "the gradient scaler's state"},
    {"rng_state*.pth", "random number states"},
    {"random_states_*.pkl", "random number states, as Accelerate saves them"},
    {"sampler*.bin", "a sampler's state, as Accelerate saves it"},
    {"dl_state_dict*.bin", "a data loader's state, as Accelerate saves it"},
    {"custom_checkpoint_*.pkl", "an object that was registered with Accelerate"},
    {"trainer_state.json", "the progress of a run of transformers' Trainer"},
    {"training_args.bin", "the arguments of transformers' Trainer"},
    {"config.json", "the model's configuration"},
    {"generation_config.json", "the model's settings for generation"},
    {"adapter_config.json", "the adapter's configuration"},
    {"*_model_states.pt", "one rank's model of a DeepSpeed run"},
    {"*_optim_states.pt", "one rank's optimizer state of a DeepSpeed run"},
    {"pytorch_model*.bin", "weights that torch.save wrote"},
    {"tokenizer*.json", "the tokenizer"},
    {"special_tokens_map.json", "the tokenizer"},
    {"added_tokens.json", "the tokenizer"},
    {"vocab.json", "the tokenizer"},
};

constexpr Companion kBesideDcp[] = {
    {"meta.pt", "epoch, step, loops and schedulers, as Lightning saves them"}};

// What a file is for that programs are known to put beside a checkpoint; empty where it is not
// known. Told from the name alone: what is in it is looked at elsewhere.
std::string_view what_of(const std::string& name, std::span<const Companion> known) {
  for (const Companion& companion : known) {
    if (Glob(companion.name).matches(name)) return companion.what;
  }
  return {};
}

namespace fs = std::filesystem;

constexpr size_t kDepthMax = 8;
constexpr size_t kFilesMax = 10'000;  // that are listed beside a plain checkpoint

std::string companion_of(const std::string& name, const FolderConvention* convention) {
  return convention == nullptr ? "" : std::string(what_of(name, convention->companions));
}

// What only an interrupted or another save can have left here.
const char* left_over_reason(const std::string& name, const Catalog& catalog,
                             const FolderConvention* convention) {
  if (name.ends_with(".distcp")) return ".metadata does not name this file";
  if (name == ".metadata.tmp") return "left by a save that did not finish";
  if (catalog.format != Format::TorchDist || convention == nullptr) return nullptr;
  if (name.starts_with(convention->stray_rank_file_prefix) ||
      name.starts_with(convention->rank_folder_prefix)) {
    return "belongs to a torch checkpoint";
  }
  return nullptr;
}

class Lister {
 public:
  explicit Lister(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        catalog_(checkpoint.catalog()),
        source_(checkpoint.source()),
        convention_(checkpoint.known_convention()) {
    for (const fs::path& path : checkpoint.files()) {  // metadata that was read, too
      known_.insert(path.lexically_relative(checkpoint.folder()).string());
    }
  }

  std::vector<FileBeside> run() {
    if (!source_.can_list(checkpoint_.folder())) {
      const std::string other = "what a web server does not list";
      return {{other, other, BesideKind::Unknown, "not known"}};
    }
    if (is_plain_folder(checkpoint_)) {
      list_tree("", 0);
    } else if (!checkpoint_.was_file()) {
      list_folder("");
      if (catalog_.format == Format::Torch) list_rank_folders();
    }
    if (checkpoint_.was_root()) list_root();
    std::ranges::sort(found_, {}, &FileBeside::shown);
    return std::move(found_);
  }

 private:
  void list_folder(const std::string& prefix) {
    for (const std::string& name : source_.list(checkpoint_.folder() / prefix)) {
      const std::string path = prefix + name;
      const EntryKind kind = source_.kind_of_entry(checkpoint_.folder() / path);
      const bool is_folder = kind == EntryKind::Folder;
      if (known_.contains(path) || (!is_folder && is_about_files(path, convention_))) continue;
      const bool is_rank =
          is_folder && convention_ != nullptr && path.starts_with(convention_->rank_folder_prefix);
      if (is_rank && (catalog_.format == Format::Torch || list_data_loaders(path))) continue;
      add(path, name, is_folder);
    }
  }

  // Of a plain checkpoint: what lies in its folder, and in those below it.
  void list_tree(const std::string& prefix, size_t depth) {
    for (const std::string& name : source_.list(checkpoint_.folder() / prefix)) {
      const std::string path = prefix + name;
      if (found_.size() > kFilesMax) return;
      if (found_.size() == kFilesMax) {
        found_.push_back(
            {prefix, checkpoint_.shown_name(prefix.empty() ? "." : prefix), BesideKind::Unknown,
             "more than " + std::to_string(kFilesMax) + " files: the rest is not listed", true});
        return;
      }
      const bool is_folder =
          source_.kind_of_entry(checkpoint_.folder() / path) == EntryKind::Folder;
      if (is_folder) {
        list_subfolder(path, name, depth);
      } else if (!known_.contains(path) && !is_about_files(path, convention_)) {
        add(path, name, false);
        describe_plain(path, name);
      }
    }
  }

  void list_subfolder(const std::string& path, const std::string& name, size_t depth) {
    const char* const reason = left_over_reason(path, catalog_, convention_);
    const char* what = nullptr;
    if (name.starts_with('.')) what = "a hidden folder";
    const fs::path folder = checkpoint_.folder() / path;
    // DeepSpeed's ranks save below what Trainer and Accelerate save; items of ranks may lie below.
    const auto known = known_.lower_bound(path + "/");
    const bool has_own = known != known_.end() && known->starts_with(path + "/");
    const bool is_part = has_own || (what == nullptr && holds_deepspeed(source_, folder));
    if (what == nullptr && !is_part && holds_checkpoint(source_, folder, convention_)) {
      what = "a checkpoint of its own";
    }
    if (what == nullptr && depth == kDepthMax) what = "a folder more than eight levels down";
    if (what == nullptr && reason == nullptr) return list_tree(path + "/", depth + 1);
    add(path, name, true);
    if (reason == nullptr) found_.back().what = what;
  }

  void describe_plain(const std::string& path, const std::string& name) {
    FileBeside& file = found_.back();
    const Folder::Entry entry = source_.stat(checkpoint_.folder() / path);
    if (entry.kind == EntryKind::File) file.count_bytes = entry.state.count_bytes;
    std::string_view what = what_of(name, kKnown);
    if (what.empty() && catalog_.format == Format::TorchDist) what = what_of(name, kBesideDcp);
    if (what.empty() || file.kind != BesideKind::Unknown) return;
    file.kind = BesideKind::Companion;
    file.what = what;
  }

  void list_rank_folders() {
    std::set<std::string> folders;
    for (const std::string& path : known_) folders.insert(path.substr(0, path.find('/') + 1));
    for (const std::string& folder : folders) {
      if (!folder.empty()) list_folder(folder);
    }
  }

  // Files of data loaders have the place that they would have in format torch. False where the
  // folder holds something else, or nothing.
  bool list_data_loaders(const std::string& folder) {
    const std::vector<std::string> names = source_.list(checkpoint_.folder() / folder);
    const bool are_loaders =
        !names.empty() && std::ranges::all_of(names, [this](const std::string& name) {
          return name.starts_with(convention_->data_loader_prefix);
        });
    if (!are_loaders) return false;
    for (const std::string& name : names) add(folder + "/" + name, name, false);
    return true;
  }

  void add(const std::string& path, const std::string& name, bool is_folder) {
    FileBeside file{path, checkpoint_.shown_name(path), BesideKind::Unknown,
                    companion_of(name, convention_), is_folder};
    const char* const reason = left_over_reason(path, catalog_, convention_);
    if (reason != nullptr && file.what.empty()) {
      file.kind = BesideKind::LeftOver;
      file.what = reason;
    } else if (!file.what.empty()) {
      file.kind = BesideKind::Companion;
    } else {
      file.what =
          is_folder ? "a folder that is not part of the checkpoint" : "not part of the checkpoint";
    }
    found_.push_back(std::move(file));
  }

  bool belongs_to_root(const std::string& name) const {
    return name == convention_->tracker || name == convention_->proof_file ||
           name == convention_->unnumbered || name == convention_->state_folder ||
           name.starts_with(convention_->iteration_prefix);
  }

  // Its iterations are checkpoints of their own.
  void list_root() {
    const fs::path root = checkpoint_.folder().parent_path();
    for (const std::string& name : source_.list(root)) {
      const fs::path path = root / name;
      const bool is_folder = source_.kind_of_entry(path) == EntryKind::Folder;
      if (belongs_to_root(name)) continue;
      FileBeside file{"../" + name, name, BesideKind::Companion, companion_of(name, convention_),
                      is_folder,    true};
      if (name.starts_with(convention_->stray_rank_file_prefix)) {
        file.what = "lies in the root, outside every iteration";
      } else if (file.what.empty()) {
        file.kind = BesideKind::Unknown;
        file.what = "lies in the root and is not part of an iteration";
      }
      found_.push_back(std::move(file));
    }
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  const Folder& source_;
  const FolderConvention* convention_;  // set where a root was opened
  std::set<std::string> known_;
  std::vector<FileBeside> found_;
};

// All files of a folder, or the file itself.
void add_paths(const Checkpoint& checkpoint, const std::string& path, size_t depth,
               std::vector<std::string>& paths) {
  const fs::path whole = checkpoint.folder() / path;
  const EntryKind kind = checkpoint.source().kind_of_entry(whole);
  if (kind == EntryKind::File) paths.push_back(path);
  if (kind != EntryKind::Folder || depth > kDepthMax) return;
  for (const std::string& name : checkpoint.source().list(whole)) {
    add_paths(checkpoint, path + "/" + name, depth + 1, paths);
  }
}

std::unique_ptr<OpenedFile> open_beside(const Checkpoint& checkpoint, const std::string& path) {
  const bool is_in_root = path.starts_with("../");
  return open_verified(checkpoint, {path, checkpoint.shown_name(path),
                                    is_in_root ? FileRole::Tracker : FileRole::Plain});
}

}  // namespace

std::vector<FileBeside> files_beside(const Checkpoint& checkpoint) {
  return Lister(checkpoint).run();
}

std::vector<NotCarried> files_not_carried(const Checkpoint& checkpoint) {
  std::vector<NotCarried> files;
  for (FileBeside& file : files_beside(checkpoint)) {
    if (file.is_in_root && file.kind == BesideKind::Unknown) continue;
    files.push_back({std::move(file.shown), std::move(file.what)});
  }
  if (checkpoint.catalog().format != Format::Torch) return files;
  const std::string model(DeepSpeedFiles::kWholeModel);
  const bool is_there = std::ranges::find(checkpoint.catalog().files, model, &FileEntry::path) !=
                        checkpoint.catalog().files.end();
  if (is_there && !checkpoint.joined_words().empty()) {
    files.push_back({"weights of " + checkpoint.shown_name(model),
                     "those of the ranks' fp32 parameters are carried"});
  }
  for (const FileEntry& file : checkpoint.catalog().files) {  // of rank folders
    std::string what = companion_of(fs::path(file.path).filename(), checkpoint.convention());
    if (!what.empty()) files.push_back({checkpoint.shown_name(file.path), std::move(what)});
  }
  return files;
}

std::string text_beside(const Checkpoint& checkpoint, const std::string& file_name) {
  const auto kind = checkpoint.source().kind_of(checkpoint.folder() / file_name);
  if (kind != EntryKind::File) return {};
  const auto file = open_beside(checkpoint, file_name);
  if (file->size_bytes() > checkpoint.limits().small_file_bytes_max) return {};
  return head_of(*file, file->size_bytes());
}

std::vector<TargetFile> copies_of_beside(const Checkpoint& checkpoint,
                                         std::span<const std::string_view> names,
                                         uint64_t bytes_max) {
  std::vector<TargetFile> copies;
  const auto is_named = [&](const fs::path& name) {
    return std::ranges::find(names, name.string()) != names.end();
  };
  for (const FileBeside& beside : files_beside(checkpoint)) {
    const fs::path place = beside.path;
    if (!is_named(place.filename()) && !is_named(*place.begin())) continue;
    std::vector<std::string> paths;
    add_paths(checkpoint, beside.path, 0, paths);
    std::vector<TargetFile> files;
    uint64_t left_bytes = bytes_max;
    for (const std::string& path : paths) {
      const auto file = open_beside(checkpoint, path);
      if (file->size_bytes() > left_bytes) break;
      left_bytes -= file->size_bytes();
      files.push_back({path, {}, head_of(*file, file->size_bytes())});
    }
    if (files.size() < paths.size()) continue;
    bytes_max = left_bytes;
    std::ranges::move(files, std::back_inserter(copies));
  }
  return copies;
}

}  // namespace ckpt

// Where a checkpoint's files lie, opening them, and what their metadata gives.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/folder.h>
#include <ckpt/folder_convention.h>
#include <ckpt/limits.h>

namespace ckpt {

// Files of a checkpoint as they were when they were opened for the first time. Thread-safe.
class OpenedFiles {
 public:
  void note(const std::string& name, const FileState& state) {
    const std::scoped_lock lock(mutex_);
    states_.try_emplace(name, state);
  }
  std::optional<FileState> state_of(const std::string& name) const {
    const std::scoped_lock lock(mutex_);
    const auto found = states_.find(name);
    return found == states_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FileState> states_;
};

// What a path turned out to be: the folder (or file) to read, after roots and trackers were
// followed.
struct Location {
  std::shared_ptr<const Folder> source;  // where all of it is
  Format format = Format::Torch;
  std::filesystem::path folder;          // what relative file names start from
  std::optional<std::string> only_file;  // a single-file checkpoint: its name in `folder`
  std::optional<int64_t> iteration;      // from the folder's name
  bool was_root = false;
  bool is_index = false;    // only_file is the index of several safetensors files
  bool named_file = false;  // only_file was named by the user, not found in a folder
  const FolderConvention* convention = nullptr;
  std::shared_ptr<OpenedFiles> opened = std::make_shared<OpenedFiles>();
};

// A file that a user names, as far as it tells its format.
struct FileHead {
  std::string_view name, bytes;  // the first ones
  uint64_t count_bytes;          // of the file
};

// What the keys of a format's catalog say of a state dict.
enum class KeyStyle : uint8_t {
  Flat,     // names
  Places,   // places in the tree of a torch.save file, which its Document has
  Planned,  // names; planner_data of .metadata may have a path for each
};

// Whether the user allows links that lead out of the folder, or has named this very file.
bool may_lead_out(const Location& location, const std::string& name, const Limits& limits);
// Opens a file of a checkpoint, and notes it in location.opened; errors call it `shown`. A link
// that may not lead out is Corrupt.
std::unique_ptr<OpenedFile> open_source(const Location& location, const std::string& name,
                                        const std::string& shown, const Limits& limits);

// `source`, whose metadata files are opened once, at their first open(): small ones are read once,
// too. These are .metadata and what `convention`, if any, says of a root and of a torch_dist
// folder.
std::shared_ptr<const Folder> keep_metadata(std::shared_ptr<const Folder> source,
                                            const FolderConvention* convention);

// What reading the metadata of a checkpoint gives.
struct Contents {
  Catalog catalog;
  std::map<std::string, Document> documents;           // torch.save files by name
  std::string joined_words;                            // Checkpoint::joined_words()
  std::optional<ValueTree> dist_metadata;              // .metadata: DistMetadata::rest
  std::vector<std::string> metadata_files;             // read, but not in catalog.files
  bool has_backend_file = false;                       // FolderConvention::backend_file
  std::map<std::string, std::string> header_metadata;  // safetensors' __metadata__
};

}  // namespace ckpt

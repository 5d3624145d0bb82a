#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>
#include <ckpt/document.h>
#include <ckpt/limits.h>

#include "io/file.h"

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
  Format format = Format::Torch;
  std::filesystem::path folder;          // what relative file names start from
  std::optional<std::string> only_file;  // a single-file checkpoint: its name in `folder`
  std::optional<int64_t> iteration;      // from the folder's name
  bool was_root = false;
  bool is_index = false;    // only_file is the index of several safetensors files
  bool named_file = false;  // only_file was named by the user, not found in a folder
  std::shared_ptr<OpenedFiles> opened = std::make_shared<OpenedFiles>();
};

// Whether the user allows links that lead out of the folder, or has named this very file.
bool may_lead_out(const Location& location, const std::string& name, const Limits& limits);
// Opens a file of a checkpoint, and notes it in location.opened; errors call it `shown`. A link
// that may not lead out is Corrupt.
File open_source(const Location& location, const std::string& name, const std::string& shown,
                 const Limits& limits);

inline constexpr const char* kTrackerName = "latest_checkpointed_iteration.txt";
inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kSafetensorsIndexSuffix = ".safetensors.index.json";

// What reading the metadata of a checkpoint gives.
struct Contents {
  Catalog catalog;
  std::map<std::string, Document> documents;           // torch.save files by name
  std::optional<ValueTree> dist_metadata;              // .metadata: DistMetadata::rest
  std::vector<std::string> metadata_files;             // read, but not in catalog.files
  bool has_backend_file = false;                       // Megatron's metadata.json
  std::map<std::string, std::string> header_metadata;  // safetensors' __metadata__
};

// One row a format: nothing else in the house knows its name.
struct FormatReader {
  Format format;
  Contents (*read_contents)(const Location&, const Limits&);
};
const FormatReader& reader_of(Format format);

// What the text of a tracker names: an iteration, or none for "release". Throws Corrupt, with what
// was found and why it is neither.
std::optional<int64_t> tracked_iteration(std::string_view text);
std::string tracked_text(const File& tracker);  // as much as tells whether it names something
// iter_0000003 -> 3, and back.
std::optional<int64_t> iteration_named(std::string_view folder_name);
std::string iteration_folder(int64_t iteration);

// Follows roots, trackers and --iteration; tells formats apart by content. Throws NotFound, Corrupt
// (a tracker that holds junk, a link that leads out of the root) or Unsupported (a format that is
// known and not read).
Location find_checkpoint(const std::filesystem::path& path, const OpenOptions& options);

// Whether a folder is a root, or holds a checkpoint in one of the formats; its files are not
// opened.
bool holds_checkpoint(const std::filesystem::path& folder);

// A torch.save file of a checkpoint; `shown`: what its catalog entries call it.
struct TorchSaveFile {
  const Location& location;
  const std::string& name;
  const std::string& shown;
};
// Adds the file, its document and its tensors.
const Document& add_torch_save_file(const TorchSaveFile& what, const Limits& limits,
                                    Contents& contents);

Contents read_torch_contents(const Location& location, const Limits& limits);
Contents read_torch_dist_contents(const Location& location, const Limits& limits);
Contents read_safetensors_contents(const Location& location, const Limits& limits);

}  // namespace ckpt

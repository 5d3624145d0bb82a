#include "execute/verify_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "format/integrity.h"
#include "io/directory.h"
#include "io/file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBackendName = "metadata.json";
constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";

bool starts_as_zip(const File& file) {
  std::array<std::byte, 4> head = {};
  if (file.size_bytes() < head.size()) return false;
  file.read_at(0, head);
  return head == std::array{std::byte{'P'}, std::byte{'K'}, std::byte{3}, std::byte{4}};
}

// Files that Megatron and PyTorch put beside the tensors, and that are read as a whole.
bool is_plain_name(const std::string& name) {
  return name == ".metadata" || name == "metadata.json" || name == kIntegrityName ||
         (name.starts_with("__") && name.ends_with(".metadata"));
}

// What only an interrupted or another save can have left here.
const char* left_over_reason(const std::string& name, Format format) {
  if (name.ends_with(".distcp")) return "nothing in .metadata names this file";
  if (name == ".metadata.tmp") return "a save that did not come to its end";
  if (format != Format::TorchDist) return nullptr;
  if (name.starts_with("layer_wise_optimizer_") || name.starts_with("mp_rank_")) {
    return "belongs to a checkpoint of format torch";
  }
  return nullptr;
}

class Lister {
 public:
  Lister(const Checkpoint& checkpoint, std::vector<Finding>& findings)
      : checkpoint_(checkpoint), catalog_(checkpoint.catalog()), findings_(findings) {}

  std::vector<VerifiedFile> run() {
    for (uint32_t i = 0; i < catalog_.files.size(); ++i) add_known(i);
    if (catalog_.format == Format::TorchDist) check_common_state();
    if (owns_folder()) {
      list_folder("");
      if (catalog_.format == Format::Torch) list_rank_folders();
    }
    if (checkpoint_.was_root()) list_root();
    std::ranges::sort(files_, {}, &VerifiedFile::shown);
    return std::move(files_);
  }

 private:
  // A single file shares its folder with whatever else is there.
  bool owns_folder() const {
    if (catalog_.format == Format::TorchDist) return true;
    return catalog_.format == Format::Torch && checkpoint_.is_megatron();
  }

  void add_known(uint32_t index) {
    const std::string& path = catalog_.files[index].path;
    FileRole role = FileRole::Safetensors;
    if (path.ends_with(".distcp")) {
      role = FileRole::Entries;
    } else if (path.ends_with(".json")) {  // the index of several safetensors files
      role = FileRole::Plain;
    } else if (catalog_.format != Format::Safetensors && !path.ends_with(".safetensors")) {
      role = starts_as_zip(open_verified(checkpoint_, {path, checkpoint_.shown_name(path)}))
                 ? FileRole::Archive
                 : FileRole::Plain;
    }
    known_.insert(path);
    files_.push_back({path, checkpoint_.shown_name(path), role, index});
  }

  // Megatron's metadata.json names a backend for common.pt where there is such a file.
  void check_common_state() {
    const fs::path path = checkpoint_.folder() / kBackendName;
    if (kind_behind(path) != EntryKind::File || known_.contains("common.pt")) return;
    const std::string shown = checkpoint_.shown_name(kBackendName);
    const File file = open_verified(checkpoint_, {kBackendName, shown});
    if (file.size_bytes() > checkpoint_.limits().small_file_bytes_max) return;
    std::string text(file.size_bytes(), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(text)));
    if (text.find("\"common_backend\"") == text.npos) return;
    findings_.push_back({CheckKind::Structure,
                         Severity::Damage,
                         {.file = checkpoint_.shown_name("common.pt"), .key = {}},
                         "is missing, although metadata.json says how it is stored"});
  }

  void list_folder(const std::string& prefix) {
    for (const std::string& name : Directory::open(checkpoint_.folder() / prefix).list()) {
      const std::string path = prefix + name;
      if (known_.contains(path)) continue;
      const EntryKind kind = kind_of_entry(checkpoint_.folder() / path);
      if (kind == EntryKind::Folder) {
        const bool is_rank = catalog_.format == Format::Torch && path.starts_with("mp_rank_");
        if (!is_rank) note_stray(path, "a folder that is no part of the checkpoint");
      } else if (prefix.empty() && is_plain_name(path)) {
        files_.push_back({path, checkpoint_.shown_name(path), FileRole::Plain});
      } else {
        add_stray(path, kind);
      }
    }
  }

  void list_rank_folders() {
    std::set<std::string> folders;
    for (const std::string& path : known_) folders.insert(path.substr(0, path.find('/') + 1));
    for (const std::string& folder : folders) {
      if (!folder.empty()) list_folder(folder);
    }
  }

  // Only files are accounted for: links may lead anywhere.
  void add_stray(const std::string& path, EntryKind kind) {
    note_stray(path, "no part of the checkpoint");
    if (kind == EntryKind::File) {
      files_.push_back({path, checkpoint_.shown_name(path), FileRole::Stray});
    }
  }

  void note_stray(const std::string& path, const char* otherwise) {
    const char* reason = left_over_reason(path, catalog_.format);
    findings_.push_back({CheckKind::Structure,
                         reason ? Severity::Damage : Severity::Note,
                         {.file = checkpoint_.shown_name(path), .key = {}},
                         reason ? reason : otherwise});
    if (reason) findings_.back().hint = "left over from another save: remove it";
  }

  // The tracker, and what older Megatron versions leave in the root.
  void list_root() {
    const fs::path root = checkpoint_.folder().parent_path();
    for (const std::string& name : Directory::open(root).list()) {
      if (name == kTracker) files_.push_back({"../" + name, name, FileRole::Tracker});
      if (!name.starts_with("layer_wise_optimizer_")) continue;
      findings_.push_back({CheckKind::Structure,
                           Severity::Note,
                           {.file = name, .key = {}},
                           "lies in the root, where no iteration owns it"});
    }
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  std::vector<Finding>& findings_;
  std::set<std::string> known_;
  std::vector<VerifiedFile> files_;
};

// Entries of files that are not there are findings.
void take_manifest(FileHashes hashes, std::vector<VerifiedFile>& files,
                   std::vector<Finding>& findings) {
  std::string shown;
  for (VerifiedFile& file : files) {
    if (file.path == kIntegrityName) {
      file.role = FileRole::Manifest;
      shown = file.shown;
    }
    if (const auto entry = hashes.extract(file.path)) file.manifest_hash = entry.mapped();
  }
  for (const auto& [path, hash] : hashes) {
    findings.push_back({CheckKind::Structure,
                        Severity::Damage,
                        {shown, std::nullopt, path},
                        "the manifest lists this file, which is not there"});
  }
}

void read_manifest(const Checkpoint& checkpoint, std::vector<VerifiedFile>& files,
                   std::vector<Finding>& findings) {
  const fs::path path = checkpoint.folder() / kIntegrityName;
  if (!checkpoint.is_megatron() || kind_behind(path) != EntryKind::File) return;
  try {
    const VerifiedFile manifest{kIntegrityName, checkpoint.shown_name(kIntegrityName)};
    const File file = open_verified(checkpoint, manifest);
    take_manifest(read_integrity(file, checkpoint.limits()), files, findings);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    findings.push_back(
        {CheckKind::Content, Severity::Damage, error.where(), error.problem(), error.hint()});
  }
}

}  // namespace

uint64_t VerifiedFile::own_bytes() const {
  uint64_t total_bytes = 0;
  for (const ByteRange& piece : own) total_bytes += piece.count_bytes;
  return total_bytes;
}

std::vector<VerifiedFile> list_files(const Checkpoint& checkpoint,
                                     std::vector<Finding>& findings) {
  std::vector<VerifiedFile> files = Lister(checkpoint, findings).run();
  for (VerifiedFile& file : files) {
    file.count_bytes = open_verified(checkpoint, file).size_bytes();
  }
  read_manifest(checkpoint, files, findings);
  return files;
}

File open_verified(const Checkpoint& checkpoint, const VerifiedFile& file) {
  const Links links = links_if(checkpoint.may_lead_out(file.path));
  if (file.role != FileRole::Tracker) {
    return Directory::open(checkpoint.folder()).open_file(file.path, file.shown, links);
  }
  const Directory root = Directory::open(checkpoint.folder().parent_path());
  return root.open_file(fs::path(file.path).filename().string(), file.shown, links);
}

}  // namespace ckpt

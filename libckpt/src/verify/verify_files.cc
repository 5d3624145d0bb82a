#include "verify/verify_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <ckpt/files_beside.h>

#include "base/text.h"
#include "codec/integrity.h"
#include "io/directory.h"
#include "model/check_catalog.h"
#include "verify/beside_check.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

class FileLister {
 public:
  FileLister(const Checkpoint& checkpoint, std::vector<Finding>& findings)
      : checkpoint_(checkpoint), catalog_(checkpoint.catalog()), findings_(findings) {}

  std::vector<VerifiedFile> run() {
    find_entries();
    for (uint32_t i = 0; i < catalog_.files.size(); ++i) add_known(i);
    if (catalog_.format == Format::TorchDist && convention_ != nullptr) check_common_state();
    add_plain_files();
    for (const FileBeside& file : files_beside(checkpoint_)) add_beside(file);
    if (checkpoint_.was_root()) add_tracker();
    return std::move(files_);
  }

 private:
  // .metadata may place archives in files of any name.
  void find_entries() {
    for_each_region(catalog_, [this](const StorageRegion& region, const std::string&) {
      if (region.wrapping != Wrapping::None) with_entries_[region.file] = true;
    });
  }

  void add_known(uint32_t index) {
    const std::string& path = catalog_.files[index].path;
    if (!catalog_.files[index].lack.empty()) return add_lacking(catalog_.files[index]);
    FileRole role = FileRole::Safetensors;
    if (with_entries_[index] || path.ends_with(".distcp")) {
      role = FileRole::Entries;
    } else if (path.ends_with(".json")) {  // the index of several safetensors files
      role = FileRole::Plain;
    } else if (catalog_.format != Format::Safetensors && !path.ends_with(".safetensors")) {
      const auto file = open_verified(checkpoint_, {path, checkpoint_.shown_name(path)});
      role = head_of(*file, 4) == "PK\x03\x04" ? FileRole::Archive : FileRole::Plain;
    }
    known_.insert(path);
    files_.push_back({path, checkpoint_.shown_name(path), role, index});
  }

  void add_lacking(const FileEntry& file) {
    const std::string shown = checkpoint_.shown_name(file.path);
    known_.insert(file.path);
    find(Severity::Damage, shown, file.lack);
    findings_.back().is_incomplete = true;
    if (!file.is_missing) files_.push_back({file.path, shown, FileRole::Cut});
  }

  void find(Severity severity, const std::string& shown, std::string problem) {
    findings_.push_back({CheckKind::Structure, severity, {shown}, std::move(problem)});
  }

  void check_common_state() {
    const std::string name(convention_->common_file), backend(convention_->backend_file);
    if (known_.contains(name)) return;
    const std::string text = text_beside(checkpoint_, backend);
    if (text.find('"' + std::string(convention_->common_key) + '"') == text.npos) return;
    find(Severity::Damage, checkpoint_.shown_name(name),
         "is missing, although " + backend + " names its format");
    findings_.back().is_incomplete = true;
  }

  void add_plain_files() {
    if (!owns_folder(checkpoint_)) return;
    for (const std::string& name : source_.list(checkpoint_.folder())) {
      if (known_.contains(name) || !is_about_files(name, convention_)) continue;
      if (source_.kind_of_entry(checkpoint_.folder() / name) == EntryKind::Folder) continue;
      files_.push_back({name, checkpoint_.shown_name(name), FileRole::Plain});
    }
  }

  // Only files are accounted for: links may lead anywhere. What lies in the root belongs to no
  // iteration.
  void add_beside(const FileBeside& file) {
    if (is_plain_folder(checkpoint_) && file.kind != BesideKind::LeftOver) {
      return add_checked_beside(file);
    }
    const bool is_left_over = file.kind == BesideKind::LeftOver;
    const bool is_companion = file.kind == BesideKind::Companion && !file.is_in_root;
    find(is_left_over ? Severity::Damage : Severity::Note, file.shown,
         file.what + (is_companion ? "; not checked" : ""));
    if (is_left_over) findings_.back().hint = "left over from another save: remove it";
    if (file.is_in_root || file.is_folder) return;
    if (source_.kind_of_entry(checkpoint_.folder() / file.path) != EntryKind::File) return;
    files_.push_back({file.path, file.shown, FileRole::Stray});
  }

  void add_checked_beside(const FileBeside& file) {
    VerifiedFile verified{file.path, file.shown, FileRole::Beside};
    verified.beside = kNotChecked;
    if (file.is_folder || !can_open_beside(checkpoint_, file)) {
      return find(Severity::Note, file.shown, file.what + "; not checked");
    }
    BesideCheck check = check_beside(checkpoint_, file);
    verified.role = check.role;
    verified.beside = check.read_as;
    if (check.finding) findings_.push_back(std::move(*check.finding));
    files_.push_back(std::move(verified));
  }

  void add_tracker() {
    const std::string name(convention_->tracker);
    const fs::path root = checkpoint_.folder().parent_path();
    if (source_.kind_of_entry(root / name) == EntryKind::Absent) return;
    files_.push_back({"../" + name, name, FileRole::Tracker});
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  const Folder& source_ = checkpoint_.source();
  const FolderConvention* convention_ = checkpoint_.known_convention();
  std::vector<Finding>& findings_;
  std::vector<bool> with_entries_ = std::vector<bool>(catalog_.files.size());  // by index
  std::set<std::string> known_;
  std::vector<VerifiedFile> files_;
};

// What the manifest lists in folders beside the checkpoint (a tokenizer's) is hashed, too. Entries
// of files that are not there are findings.
void take_manifest(FileHashes hashes, const Checkpoint& checkpoint,
                   std::vector<VerifiedFile>& files, std::vector<Finding>& findings) {
  std::string shown;
  for (VerifiedFile& file : files) {
    if (file.path == kIntegrityName) {
      file.role = FileRole::Manifest;
      shown = file.shown;
    }
    if (const auto entry = hashes.extract(file.path)) file.manifest_hash = entry.mapped();
  }
  for (const auto& [path, hash] : hashes) {
    const bool is_there =
        is_safe_relative(path) &&
        checkpoint.source().kind_of_entry(checkpoint.folder() / path) == EntryKind::File;
    if (is_there) {
      files.push_back({path, checkpoint.shown_name(path), FileRole::Stray, {}, 0, hash});
      continue;
    }
    findings.push_back({CheckKind::Structure,
                        Severity::Damage,
                        {shown, std::nullopt, path},
                        "the manifest lists this file, but it is missing"});
  }
}

void read_manifest(const Checkpoint& checkpoint, std::vector<VerifiedFile>& files,
                   std::vector<Finding>& findings) {
  const fs::path path = checkpoint.folder() / kIntegrityName;
  if (checkpoint.convention() == nullptr) return;
  if (checkpoint.source().kind_of(path) != EntryKind::File) return;
  try {
    const VerifiedFile manifest{kIntegrityName, checkpoint.shown_name(kIntegrityName)};
    const auto file = open_verified(checkpoint, manifest);
    take_manifest(read_integrity(*file, checkpoint.limits()), checkpoint, files, findings);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    const bool is_unknown =
        error.code() == ErrorCode::Unsupported && error.where().key == kAlgorithmKey;
    findings.push_back(
        {CheckKind::Content, Severity::Damage, error.where(), error.problem(),
         is_unknown ? std::string(checkpoint.convention()->manifest_hint) : error.hint()});
  }
}

}  // namespace

uint64_t VerifiedFile::own_bytes() const {
  uint64_t total_bytes = 0;
  for (const ByteRange& piece : own) total_bytes += piece.count_bytes;
  return total_bytes;
}

std::vector<VerifiedFile> list_files(const Checkpoint& checkpoint, std::vector<Finding>& findings) {
  std::vector<VerifiedFile> files = FileLister(checkpoint, findings).run();
  read_manifest(checkpoint, files, findings);
  for (VerifiedFile& file : files) {
    file.count_bytes = open_verified(checkpoint, file)->size_bytes();
  }
  std::ranges::sort(files, {}, &VerifiedFile::shown);
  return files;
}

bool owns_folder(const Checkpoint& checkpoint) { return !checkpoint.was_file(); }

bool is_plain_folder(const Checkpoint& checkpoint) {
  return owns_folder(checkpoint) && checkpoint.convention() == nullptr;
}

bool is_about_files(const std::string& name, const FolderConvention* convention) {
  const bool is_backend = convention != nullptr && name == convention->backend_file;
  const bool is_proof = convention != nullptr && name == convention->proof_file;
  return is_backend || is_proof || name == ".metadata" || name == kIntegrityName ||
         (name.starts_with("__") && name.ends_with(".metadata"));
}

std::unique_ptr<OpenedFile> open_verified(const Checkpoint& checkpoint, const VerifiedFile& file) {
  const Links links = links_if(checkpoint.may_lead_out(file.path));
  const fs::path& folder = checkpoint.folder();
  if (file.role != FileRole::Tracker) {
    return checkpoint.source().open(folder, {file.path, file.shown, links});
  }
  const std::string name = fs::path(file.path).filename().string();
  return checkpoint.source().open(folder.parent_path(), {name, file.shown, links});
}

}  // namespace ckpt

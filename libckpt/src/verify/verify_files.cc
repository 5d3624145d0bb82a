#include "verify/verify_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <ckpt/error.h>
#include <ckpt/files_beside.h>
#include <ckpt/folder_convention.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/integrity.h"
#include "codec/pickle.h"
#include "codec/strict_json.h"
#include "format/foreign/foreign.h"
#include "format/safetensors/safetensors_header.h"
#include "format/torch/torch_save.h"
#include "io/directory.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

// What a file beside a plain checkpoint turned out to be: optimizer.pt, random_states_0.pkl,
// config.json, as programs put them there.
struct BesideCheck {
  FileRole role = FileRole::Beside;
  std::string read_as{kNotChecked};  // FileAccount::beside
  std::optional<Finding> finding = std::nullopt;
};

using std::string_view;

constexpr uint64_t kHeadBytes = 512;
constexpr uint64_t kSmallestBytes = 16;                   // no file of tensors is shorter
constexpr uint64_t kWholeBytesMax = uint64_t{256} << 20;  // of JSON and pickles

constexpr string_view kTensorSuffixes[] = {".pt", ".pth", ".ckpt", ".pkl", ".safetensors"};
constexpr string_view kPickleSuffixes[] = {".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin"};

bool ends_with_one_of(string_view name, std::span<const string_view> suffixes) {
  return std::ranges::any_of(suffixes, [&](string_view suffix) { return name.ends_with(suffix); });
}

[[noreturn]] void refuse(const RandomAccess& file, std::string problem,
                         ErrorCode code = ErrorCode::Unsupported) {
  throw Error(code, {file.file_name()}, std::move(problem));
}

class Prober {
 public:
  Prober(const RandomAccess& file, const FileBeside& beside, const Limits& limits)
      : file_(file),
        name_(beside.path),
        is_known_(beside.kind == BesideKind::Companion),
        limits_(limits) {
    limits_.allow_missing_data = false;
  }

  BesideCheck run() {
    const std::string head = head_of(file_, kHeadBytes);
    const bool is_json = name_.ends_with(".json");
    const bool has_tensors = ends_with_one_of(name_, kTensorSuffixes);
    const bool is_pickle = head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
    if ((has_tensors || is_json || is_known_) && file_.size_bytes() == 0)
      throw truncated({file_.file_name()}, 0);
    if (is_json) return read_json();
    if (has_tensors && head.size() < kSmallestBytes) {
      throw truncated({file_.file_name()}, file_.size_bytes());
    }
    if (is_legacy_torch_save(head)) {
      check_document(read_legacy_torch_save(file_, 0, limits_));
      return {FileRole::Beside, "torch.save, legacy"};
    }
    if (is_pickle && ends_with_one_of(name_, kPickleSuffixes)) return read_pickles();
    if (name_.ends_with(".safetensors")) {
      if (const Foreign* const stand_in = foreign_stand_in(file_)) refuse_stand_in(*stand_in);
      read_safetensors_header(file_, 0, {0, file_.size_bytes()}, limits_);
      return {FileRole::Beside, "safetensors"};
    }
    refuse_other_content(has_tensors);
    if (!head.starts_with("PK\x03\x04")) refuse_unknown();
    check_document(read_torch_save(file_, 0, {0, file_.size_bytes()}, limits_));
    const std::string saved = is_known_ ? name_when_saved(file_, name_, limits_) : "";
    if (!saved.empty()) refuse(file_, "was saved as " + escaped(saved), ErrorCode::Corrupt);
    return {FileRole::Archive, "torch.save"};
  }

 private:
  void check_document(const Document& document) const {
    for (const TensorAt& tensor : tensors_in(document)) {
      make_tensor_entry(document, tensor, file_.file_name());
    }
  }

  std::string read_whole() const {
    if (file_.size_bytes() > kWholeBytesMax) {
      refuse(file_, std::to_string(file_.size_bytes()) + " bytes, too long to be parsed");
    }
    return head_of(file_, file_.size_bytes());
  }

  BesideCheck read_json() const {
    const std::string text = read_whole();
    const auto [fault, offset_bytes] = scan_json(text);
    if (fault == JsonFault::Cut) throw truncated({file_.file_name()}, text.size());
    if (fault == JsonFault::Malformed) {
      throw Error(ErrorCode::Corrupt, {file_.file_name(), offset_bytes}, "is not valid JSON");
    }
    return {FileRole::Beside, "JSON"};
  }

  // One or several, as pickle.dump into one file leaves them.
  BesideCheck read_pickles() const {
    const std::string bytes = read_whole();
    ByteReader reader(std::as_bytes(std::span(bytes)), file_.file_name());
    while (!reader.at_end()) read_whole_pickle(reader, limits_);
    return {FileRole::Beside, "pickle"};
  }

  [[noreturn]] void refuse_stand_in(const Foreign& stand_in) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name()}, "is " + std::string(stand_in.name),
                std::string(stand_in.advice))
        .mark_incomplete();
  }

  void refuse_other_content(bool has_tensors) const {
    const Foreign* const stand_in = foreign_stand_in(file_);
    if (stand_in != nullptr && (has_tensors || is_known_)) refuse_stand_in(*stand_in);
    const Foreign* const foreign = foreign_file(file_);
    if (foreign != nullptr) refuse(file_, "is " + std::string(foreign->name));
  }

  [[noreturn]] void refuse_unknown() const {
    if (is_known_ && ends_with_one_of(name_, kPickleSuffixes)) {
      refuse(file_, "neither a torch.save file nor a pickle", ErrorCode::Corrupt);
    }
    refuse(file_, is_known_ ? "no file that is read" : "not part of the checkpoint");
  }

  const RandomAccess& file_;
  string_view name_;
  bool is_known_;  // by its name
  Limits limits_;
};

// Reads a file's structure: torch.save archives (whose checksums verify() then compares) and legacy
// files, safetensors, pickles, JSON. Damage is a finding; what is none of these, or is not
// supported, is a note. Throws IoFailure.
BesideCheck check_beside(const Checkpoint& checkpoint, const FileBeside& file) {
  try {
    const auto opened = open_verified(checkpoint, {file.path, file.shown, FileRole::Beside});
    return Prober(*opened, file, checkpoint.limits()).run();
  } catch (Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    error.within({file.shown});
    const bool is_damage = error.code() == ErrorCode::Corrupt;
    Finding finding{CheckKind::Structure, is_damage ? Severity::Damage : Severity::Note,
                    error.where(), error.problem(), error.hint()};
    if (!is_damage) {
      finding.where = {file.shown};
      finding.problem = file.what + (error.problem() == file.what ? "" : ": " + error.problem()) +
                        "; not checked";
      finding.hint.clear();
    }
    finding.is_incomplete = error.is_incomplete();
    return {FileRole::Beside, is_damage ? "damaged" : std::string(kNotChecked), finding};
  }
}

// Not a link that leads out of the folder, nor anything but a file.
bool can_open_beside(const Checkpoint& checkpoint, const FileBeside& file) {
  const Folder& source = checkpoint.source();
  if (source.kind_of(checkpoint.folder() / file.path) != EntryKind::File) return false;
  if (checkpoint.limits().follow_links) return true;
  try {
    source.check_inside(checkpoint.folder(), file.path);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    return false;
  }
}

namespace fs = std::filesystem;

class FileLister {
 public:
  FileLister(const Checkpoint& checkpoint, std::vector<Finding>& findings)
      : checkpoint_(checkpoint), catalog_(checkpoint.catalog()), findings_(findings) {}

  std::vector<VerifiedFile> run() {
    // .metadata may place archives in files of any name.
    for_each_region(catalog_, [this](const StorageRegion& region, const std::string&) {
      if (region.wrapping != Wrapping::None) with_entries_[region.file] = true;
    });
    for (uint32_t i = 0; i < catalog_.files.size(); ++i) add_known(i);
    if (catalog_.format == Format::TorchDist && convention_ != nullptr) check_common_state();
    add_plain_files();
    for (const FileBeside& file : files_beside(checkpoint_)) add_beside(file);
    if (checkpoint_.was_root()) add_tracker();
    return std::move(files_);
  }

 private:
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
    if (checkpoint_.was_file() || !source_.can_list(checkpoint_.folder())) return;
    const std::vector<fs::path> read = checkpoint_.files();  // metadata, too
    for (const std::string& name : source_.list(checkpoint_.folder())) {
      const bool is_read = std::ranges::find(read, checkpoint_.folder() / name) != read.end();
      if (known_.contains(name) || (!is_read && !is_about_files(name, convention_))) continue;
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

bool is_plain_folder(const Checkpoint& checkpoint) {
  return !checkpoint.was_file() && checkpoint.convention() == nullptr;
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
  const std::string name = file.path.substr(3);  // behind "../"
  return checkpoint.source().open(folder.parent_path(), {name, file.shown, links});
}

}  // namespace ckpt

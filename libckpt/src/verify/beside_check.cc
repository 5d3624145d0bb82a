// Files that programs put beside a plain checkpoint: optimizer.pt, random_states_0.pkl,
// config.json.
#include "verify/beside_check.h"

#include <algorithm>
#include <array>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "base/truncated.h"
#include "codec/json_scan.h"
#include "codec/whole_pickle.h"
#include "format/foreign/foreign.h"
#include "format/safetensors/safetensors_header.h"
#include "format/torch/torch_save.h"

namespace ckpt {
namespace {

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
    if (name_.ends_with(".safetensors")) return read_safetensors();
    refuse_other_content(has_tensors);
    if (!head.starts_with("PK\x03\x04")) refuse_unknown();
    check_document(read_torch_save(file_, 0, {0, file_.size_bytes()}, limits_));
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

  BesideCheck read_safetensors() const {
    if (const Foreign* const stand_in = foreign_stand_in(file_)) refuse_stand_in(*stand_in);
    read_safetensors_header(file_, 0, {0, file_.size_bytes()}, limits_);
    return {FileRole::Beside, "safetensors"};
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

}  // namespace

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

}  // namespace ckpt

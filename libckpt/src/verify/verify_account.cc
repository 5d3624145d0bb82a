#include "verify/verify_account.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace ckpt {

std::string_view name(ByteLabel label) {
  static constexpr std::string_view kNames[] = {"checksummed", "repeated", "unprotected", "padding",
                                                "unclaimed"};
  return kNames[static_cast<size_t>(label)];
}

std::string_view name(CheckKind check) {
  static constexpr std::string_view kNames[] = {"structure", "content", "meaning"};
  return kNames[static_cast<size_t>(check)];
}

bool Findings::damaged() const {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.severity == Severity::Damage; });
}

uint64_t Findings::labelled_bytes(ByteLabel label) const {
  uint64_t total = 0;
  for (const FileAccount& file : files) total += file.labelled_bytes[static_cast<size_t>(label)];
  return total;
}

void Findings::sort() {
  std::ranges::stable_sort(findings, [](const Finding& a, const Finding& b) {
    return std::tie(a.where.file, a.where.offset_bytes, a.where.key, a.problem) <
           std::tie(b.where.file, b.where.offset_bytes, b.where.key, b.problem);
  });
}

bool FileAccount::owns(uint64_t offset_bytes) const {
  if (pieces.empty()) return false;
  if (offset_bytes >= file_bytes) return pieces.back().end_bytes() == file_bytes;
  const auto behind = std::ranges::upper_bound(pieces, offset_bytes, {}, &ByteRange::offset_bytes);
  return behind != pieces.begin() && offset_bytes < std::prev(behind)->end_bytes();
}

VerifyAccount::VerifyAccount(std::vector<VerifiedFile> files, const VerifyOptions& options)
    : files_(std::move(files)), options_(options) {
  result_.file_count = files_.size();
  for (const VerifiedFile& file : files_) {
    result_.files.push_back({file.shown,
                             file.own,
                             file.own_bytes(),
                             file.count_bytes,
                             {},
                             file.manifest_hash.has_value(),
                             file.beside});
  }
}

void VerifyAccount::label(size_t file, std::span<const zip::AccountedRange> ranges) {
  const std::scoped_lock lock(mutex_);
  FileAccount& account = result_.files[file];
  for (const auto& [bytes, label, member] : ranges) {
    if (!owns(file, bytes.offset_bytes)) continue;
    const ByteLabel shown = account.has_manifest_hash ? ByteLabel::Checksummed : label;
    account.labelled_bytes[static_cast<size_t>(shown)] += bytes.count_bytes;
    if (options_.on_range) options_.on_range({account.path, bytes, shown});
  }
}

void VerifyAccount::label(size_t file, ByteRange bytes, ByteLabel label) {
  const zip::AccountedRange range{bytes, label};
  if (bytes.count_bytes != 0) this->label(file, std::span(&range, 1));
}

void VerifyAccount::find(Finding finding) {
  const std::scoped_lock lock(mutex_);
  result_.findings.push_back(std::move(finding));
}

void VerifyAccount::find_if_own(Finding finding) {
  const std::string& name = finding.where.file;
  const auto file = std::ranges::lower_bound(files_, name, {}, &VerifiedFile::shown);
  const bool is_file = file != files_.end() && file->shown == name;
  const uint64_t offset_bytes = finding.where.offset_bytes.value_or(0);
  const bool is_own = is_file ? owns(static_cast<size_t>(file - files_.begin()), offset_bytes)
                              : options_.share.rank == 0;
  if (is_own) find(std::move(finding));
}

void VerifyAccount::find(const Error& error, CheckKind check) {
  if (error.code() == ErrorCode::IoFailure) throw error;
  find({check, Severity::Damage, error.where(), error.problem(), error.hint(), false,
        error.is_incomplete()});
}

void VerifyAccount::count_checksum(bool is_right) {
  const std::scoped_lock lock(mutex_);
  ++result_.compared_checksums;
  if (!is_right) ++result_.failed_checksums;
}

void VerifyAccount::count_read(uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  result_.read_bytes += bytes;
}

void VerifyAccount::require_checksums() {
  constexpr auto kUnprotected = static_cast<size_t>(ByteLabel::Unprotected);
  for (size_t i = 0; i < files_.size(); ++i) {
    const FileAccount& file = result_.files[i];
    if (file.labelled_bytes[kUnprotected] == 0 || files_[i].role == FileRole::Tracker) continue;
    find({CheckKind::Content,
          Severity::Damage,
          {file.path},
          std::to_string(file.labelled_bytes[kUnprotected]) + " of " +
              std::to_string(file.count_bytes) + " bytes have no checksum"});
  }
}

Findings VerifyAccount::finish() {
  if (options_.require_checksums) require_checksums();
  std::erase_if(result_.files, [](const FileAccount& file) { return file.pieces.empty(); });
  result_.sort();
  return std::move(result_);
}

}  // namespace ckpt

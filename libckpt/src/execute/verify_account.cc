#include "execute/verify_account.h"

#include <algorithm>
#include <tuple>
#include <map>

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

void VerifyAccount::take_manifest(FileHashes hashes, const std::string& shown) {
  manifest_ = std::move(hashes);
  hashes_.assign(files_.size(), nullptr);
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < files_.size(); ++i) places.emplace(files_[i].path, i);
  for (const auto& [path, hash] : manifest_) {
    if (const auto found = places.find(path); found != places.end()) {
      hashes_[found->second] = &hash;
    } else {
      find_if_own({CheckKind::Structure,
                   Severity::Damage,
                   {shown, std::nullopt, path},
                   "the manifest lists this file, which is not there"});
    }
  }
}

const Sha256* VerifyAccount::manifest_hash(size_t file) const {
  return hashes_.empty() ? nullptr : hashes_[file];
}

void VerifyAccount::open_accounts() {
  for (size_t i = 0; i < files_.size(); ++i) {
    result_.files.push_back(
        {files_[i].shown, files_[i].count_bytes, {}, manifest_hash(i) != nullptr});
  }
}

void VerifyAccount::label(size_t file, std::span<const zip::AccountedRange> ranges) {
  const std::scoped_lock lock(mutex_);
  FileAccount& account = result_.files[file];
  for (const auto& [bytes, label, member] : ranges) {
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
  const bool is_own = is_file ? file->is_own : options_.share.rank == 0;
  if (is_own) find(std::move(finding));
}

void VerifyAccount::find(const Error& error, CheckKind check) {
  if (error.code() == ErrorCode::IoFailure) throw error;
  find({check, Severity::Damage, error.where(), error.problem(), error.hint()});
}

void VerifyAccount::count(uint64_t checksums, uint64_t read_bytes) {
  const std::scoped_lock lock(mutex_);
  result_.compared_checksums += checksums;
  result_.read_bytes += read_bytes;
}

void VerifyAccount::require_checksums() {
  constexpr auto kUnprotected = static_cast<size_t>(ByteLabel::Unprotected);
  for (size_t i = 0; i < files_.size(); ++i) {
    const FileAccount& file = result_.files[i];
    if (file.labelled_bytes[kUnprotected] == 0 || files_[i].role == FileRole::Tracker) continue;
    find({CheckKind::Content,
          Severity::Damage,
          {.file = file.path, .key = {}},
          std::to_string(file.labelled_bytes[kUnprotected]) + " of " +
              std::to_string(file.count_bytes) + " bytes have no checksum"});
  }
}

void VerifyAccount::keep_own_accounts() {
  result_.file_count = files_.size();
  size_t kept = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (is_own(i)) std::swap(result_.files[kept++], result_.files[i]);
  }
  result_.files.resize(kept);
}

Findings VerifyAccount::finish() {
  if (options_.require_checksums) require_checksums();
  keep_own_accounts();
  result_.sort();
  return std::move(result_);
}

}  // namespace ckpt

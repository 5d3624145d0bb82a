#include "verify/verify_account.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "model/check_catalog.h"
#include "verify/verify_files.h"
#include "work/workers.h"

namespace ckpt {
namespace {

// Which process looks at which pieces of the files.

// Where files may be cut: in front of each storage, or entry, that the catalog knows of them.
std::vector<std::vector<uint64_t>> starts_by_file(const Catalog& catalog) {
  std::vector<std::vector<uint64_t>> starts(catalog.files.size());
  for_each_region(catalog, [&](const StorageRegion& region, const std::string&) {
    starts[region.file].push_back(region.bytes.offset_bytes);
  });
  for (std::vector<uint64_t>& of_file : starts) std::ranges::sort(of_file);
  return starts;
}

// What is read as a whole stays whole: also a torch.save file that is not an archive.
bool is_read_in_parts(const VerifiedFile& file) {
  const bool has_parts = file.role == FileRole::Archive || file.role == FileRole::Entries ||
                         file.role == FileRole::Safetensors;
  return has_parts && file.index && !file.manifest_hash;
}

std::vector<ByteRange> cut(const VerifiedFile& file, std::span<const uint64_t> starts,
                           uint64_t piece_bytes_min) {
  std::vector<ByteRange> pieces;
  uint64_t piece_start = 0;
  const auto end_piece_at = [&](uint64_t end) {
    pieces.push_back({piece_start, end - piece_start});
    piece_start = end;
  };
  for (const uint64_t start : starts) {
    const bool is_enough = start >= piece_start && start - piece_start >= piece_bytes_min &&
                           start < file.count_bytes && file.count_bytes - start >= piece_bytes_min;
    if (is_enough) end_piece_at(start);
  }
  end_piece_at(file.count_bytes);
  return pieces;
}

}  // namespace

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

void deal_files(std::vector<VerifiedFile>& files, const Catalog& catalog, const Share& share) {
  check_share(share);
  struct FilePiece {
    VerifiedFile* file;
    ByteRange bytes;
  };
  std::vector<FilePiece> pieces;
  std::vector<uint64_t> sizes;
  const auto starts =
      share.world_size == 1 ? std::vector<std::vector<uint64_t>>() : starts_by_file(catalog);
  const uint64_t piece_bytes_min = std::max<uint64_t>(share.piece_bytes_min, 1);
  for (VerifiedFile& file : files) {
    const bool may_cut = !starts.empty() && is_read_in_parts(file);
    for (const ByteRange& piece :
         cut(file, may_cut ? starts[*file.index] : std::span<const uint64_t>(), piece_bytes_min)) {
      pieces.push_back({&file, piece});
      sizes.push_back(piece.count_bytes);
    }
  }
  const std::vector<uint32_t> owner = deal_by_bytes(sizes, share.world_size);
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (owner[p] == share.rank) pieces[p].file->own.push_back(pieces[p].bytes);
  }
}

}  // namespace ckpt

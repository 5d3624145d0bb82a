#include "verify/verify_account.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include <ckpt/run_jobs.h>

#include "base/text.h"
#include "codec/crc32.h"
#include "codec/integrity.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

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

// What a thread reads in one go. Long ones are read ahead, and in large folios; eight or more for
// each thread, so that all end at about the same time.
constexpr uint64_t kJobBytesMin = uint64_t{4} << 20, kJobBytesMax = uint64_t{256} << 20;
constexpr uint64_t kJobsPerThread = 8;
constexpr uint64_t kSliceBytes = uint64_t{256} << 10;  // looked at while a core has them at hand

// The first tensor of a torch.save file that views this storage, for errors.
std::string key_of_storage(const Catalog& catalog, uint32_t file, uint64_t offset_bytes) {
  for (const TensorEntry& tensor : catalog.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      const StorageRegion& region = chunk.region;
      if (region.file == file && region.bytes.offset_bytes == offset_bytes) return tensor.key;
    }
  }
  return {};
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
    FileAccount account{file.shown, file.own, file.own_bytes(), file.count_bytes};
    account.has_manifest_hash = file.manifest_hash.has_value();
    account.beside = file.beside;
    result_.files.push_back(std::move(account));
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

void PayloadVerifier::check(const VerifiedPayload& payload, std::span<const std::byte> bytes) {
  watch(payload, 0, bytes);
  if (payload.crc32) compare(payload, crc32(bytes));
}

bool PayloadVerifier::is_selected(const VerifiedPayload& payload) const {
  const auto index = account_.files()[payload.file].index;
  return !payload.region || !index || selected_.contains(*index, *payload.region);
}

void PayloadVerifier::passed(uint64_t bytes) {
  account_.count_read(bytes);
  meter_.advance(bytes);
}

void PayloadVerifier::add(VerifiedPayload payload) {
  if (!is_selected(payload)) return;
  const std::scoped_lock lock(mutex_);
  payloads_.push_back(std::move(payload));
}

void PayloadVerifier::run() {
  std::ranges::sort(payloads_, {}, [](const VerifiedPayload& payload) {
    return std::pair(payload.file, payload.bytes.offset_bytes);
  });
  sums_.resize(payloads_.size());
  const std::vector<Job> jobs = make_jobs();
  run_with_slabs(jobs.size(), account_.options().execution,
                 [&](size_t job, std::span<std::byte> slab) { run_job(jobs[job], slab); });
  for (size_t i = 0; i < payloads_.size(); ++i) {
    // Less where reading failed, which is a finding of its own.
    const bool is_whole = sums_[i].count_bytes == payloads_[i].bytes.count_bytes;
    if (payloads_[i].crc32 && is_whole) compare(payloads_[i], sums_[i].crc);
  }
}

// Files that the manifest lists are read by one thread each, whole; of the others neighbouring
// payloads, which threads take in the order of the file.
std::vector<PayloadVerifier::Job> PayloadVerifier::make_jobs() {
  uint64_t all_bytes = 0;
  for (const VerifiedPayload& payload : payloads_) all_bytes += payload.bytes.count_bytes;
  const uint64_t most_jobs = kJobsPerThread * thread_count(account_.options().execution.threads);
  const uint64_t most_bytes = std::clamp(all_bytes / most_jobs, kJobBytesMin, kJobBytesMax);
  std::vector<Job> jobs;
  size_t end = 0;
  for (size_t file = 0; file < account_.files().size(); ++file) {
    const size_t first = end;
    while (end < payloads_.size() && payloads_[end].file == file) ++end;
    if (account_.files()[file].own.empty()) continue;
    if (account_.files()[file].manifest_hash) {
      jobs.push_back(whole_file(file, first, end));
    } else {
      for (size_t payload = first; payload < end; ++payload) add_to(jobs, payload, most_bytes);
    }
  }
  return jobs;
}

void PayloadVerifier::add_to(std::vector<Job>& jobs, size_t payload, uint64_t job_bytes) const {
  const size_t file = payloads_[payload].file;
  ByteRange left = payloads_[payload].bytes;
  while (left.count_bytes != 0) {
    const bool is_new = jobs.empty() || jobs.back().file != file || jobs.back().is_hashed ||
                        jobs.back().count_bytes >= job_bytes;
    if (is_new) jobs.push_back({file, false, {}});
    Job& job = jobs.back();
    // Where no element is cut: see VerifyOptions::on_storage.
    const uint64_t room = (job_bytes - job.count_bytes) / kSliceBytes * kSliceBytes;
    const uint64_t count = std::min(std::max(room, kSliceBytes), left.count_bytes);
    job.runs.push_back({payload, {left.offset_bytes, count}});
    job.count_bytes += count;
    left = {left.offset_bytes + count, left.count_bytes - count};
  }
}

PayloadVerifier::Job PayloadVerifier::whole_file(size_t file, size_t first, size_t end) const {
  Job job{file, true, {}};
  uint64_t position = 0;
  const auto pass_until = [&](uint64_t offset) {
    if (offset > position) job.runs.push_back({std::nullopt, {position, offset - position}});
    position = std::max(position, offset);
  };
  for (size_t payload = first; payload < end; ++payload) {
    const ByteRange& bytes = payloads_[payload].bytes;
    pass_until(bytes.offset_bytes);
    job.runs.push_back({payload, bytes});
    position = bytes.end_bytes();
  }
  pass_until(account_.files()[file].count_bytes);
  return job;
}

void PayloadVerifier::run_job(const Job& job, std::span<std::byte> slab) {
  const VerifiedFile& shown = account_.files()[job.file];
  const auto slice = slab.first(std::min<size_t>(slab.size(), kSliceBytes));
  try {
    const auto file = open_verified(checkpoint_, shown);
    Sha256Stream hash;
    for (const Run& run : job.runs) read(*file, run, slice, job.is_hashed ? &hash : nullptr);
    if (job.is_hashed) compare_hash(shown, hash.finish());
  } catch (const Error& error) {
    account_.find(error, CheckKind::Content);
  }
}

void PayloadVerifier::read(const OpenedFile& file, const Run& run, std::span<std::byte> slice,
                           Sha256Stream* hash) {
  for (ByteRange left = run.bytes; left.count_bytes != 0;) {
    const auto piece = slice.first(std::min<uint64_t>(slice.size(), left.count_bytes));
    file.read_once(left.offset_bytes, piece);
    if (hash != nullptr) hash->update(piece);
    if (run.payload) take(*run.payload, left.offset_bytes, piece);
    passed(piece.size());
    left = {left.offset_bytes + piece.size(), left.count_bytes - piece.size()};
  }
}

void PayloadVerifier::compare_hash(const VerifiedFile& file, const Sha256& actual) {
  account_.count_checksum(actual == *file.manifest_hash);
  if (actual == *file.manifest_hash) return;
  account_.find({.check = CheckKind::Content,
                 .where = {file.shown},
                 .problem = "SHA-256 is " + hex(actual) + ", " + kIntegrityName + " says " +
                            hex(*file.manifest_hash),
                 .is_file_hash = true});
}

void PayloadVerifier::take(size_t payload, uint64_t offset_bytes,
                           std::span<const std::byte> bytes) {
  const ByteRange& all = payloads_[payload].bytes;
  watch(payloads_[payload], offset_bytes - all.offset_bytes, bytes);
  if (!payloads_[payload].crc32) return;
  const uint64_t after_bytes = all.end_bytes() - offset_bytes - bytes.size();
  const uint32_t crc = crc32_before(crc32(bytes), after_bytes);
  const std::scoped_lock lock(mutex_);
  sums_[payload].crc ^= crc;
  sums_[payload].count_bytes += bytes.size();
}

void PayloadVerifier::watch(const VerifiedPayload& payload, uint64_t offset_bytes,
                            std::span<const std::byte> bytes) const {
  const auto index = account_.files()[payload.file].index;
  if (!payload.region || !index || !account_.options().on_storage) return;
  if (!is_selected(payload)) return;
  account_.options().on_storage({*index, *payload.region, payload.bytes, offset_bytes, bytes});
}

void PayloadVerifier::compare(const VerifiedPayload& payload, uint32_t actual) {
  if (!is_selected(payload)) return;
  account_.count_checksum(actual == *payload.crc32);
  if (actual == *payload.crc32) return;
  const VerifiedFile& file = account_.files()[payload.file];
  std::string key = payload.key;
  if (key.empty() && file.index) {
    key = key_of_storage(checkpoint_.catalog(), *file.index, payload.bytes.offset_bytes);
  }
  account_.find({CheckKind::Content,
                 Severity::Damage,
                 {file.shown, payload.bytes.offset_bytes, std::move(key)},
                 "CRC-32 is " + hex(actual) + ", the archive says " + hex(*payload.crc32)});
}

}  // namespace ckpt

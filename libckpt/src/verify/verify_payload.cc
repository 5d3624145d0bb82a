#include "verify/verify_payload.h"

#include <algorithm>

#include <ckpt/run_jobs.h>

#include "base/text.h"
#include "codec/crc32.h"
#include "codec/integrity.h"
#include "work/workers.h"

namespace ckpt {
namespace {

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
  compare_all();
}

uint64_t PayloadVerifier::job_bytes() const {
  uint64_t all_bytes = 0;
  for (const VerifiedPayload& payload : payloads_) all_bytes += payload.bytes.count_bytes;
  const uint64_t jobs = kJobsPerThread * thread_count(account_.options().execution.threads);
  return std::clamp(all_bytes / jobs, kJobBytesMin, kJobBytesMax);
}

// Files that the manifest lists are read by one thread each, whole; of the others neighbouring
// payloads, which threads take in the order of the file.
std::vector<PayloadVerifier::Job> PayloadVerifier::make_jobs() {
  const uint64_t most_bytes = job_bytes();
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
  pass_until(account_.size_bytes(file));
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
  account_.find(
      {CheckKind::Content,
       Severity::Damage,
       {file.shown},
       "SHA-256 is " + hex(actual) + ", " + kIntegrityName + " says " + hex(*file.manifest_hash),
       {},
       true});
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

void PayloadVerifier::compare_all() {
  for (size_t i = 0; i < payloads_.size(); ++i) {
    // Less where reading failed, which is a finding of its own.
    const bool is_whole = sums_[i].count_bytes == payloads_[i].bytes.count_bytes;
    if (payloads_[i].crc32 && is_whole) compare(payloads_[i], sums_[i].crc);
  }
}

}  // namespace ckpt

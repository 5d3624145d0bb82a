#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/verify.h>

#include "codec/hash_functions.h"
#include "codec/zip.h"
#include "verify/verify_files.h"
#include "work/workers.h"

namespace ckpt {

// Collects what verify() finds, from all threads. Files are named by their place in `files`.
class VerifyAccount {
 public:
  VerifyAccount(std::vector<VerifiedFile> files, const VerifyOptions& options);

  const std::vector<VerifiedFile>& files() const { return files_; }
  const VerifyOptions& options() const { return options_; }

  bool owns(size_t file, uint64_t offset_bytes) const {
    return result_.files[file].owns(offset_bytes);
  }
  // Ranges that start in pieces of other shares are left to these.
  void label(size_t file, std::span<const zip::AccountedRange> ranges);
  void label(size_t file, ByteRange bytes, ByteLabel label);
  void find(Finding finding);
  // For what every process finds: the owner of the place says it, or the first process where it is
  // in no file.
  void find_if_own(Finding finding);
  // An error about a part of the checkpoint becomes a finding; one of the system is thrown on.
  void find(const Error& error, CheckKind check);
  void count_checksum(bool is_right);
  void count_read(uint64_t bytes);

  Findings finish();

 private:
  void require_checksums();

  std::vector<VerifiedFile> files_;
  const VerifyOptions& options_;
  std::mutex mutex_;
  Findings result_;
};

// Bytes to read for verify(): a member of an archive, or a file's bytes without a checksum.
struct VerifiedPayload {
  size_t file = 0;  // into VerifyAccount::files()
  ByteRange bytes;
  std::optional<uint32_t> crc32 = std::nullopt;
  std::optional<ByteRange> region = std::nullopt;  // of a storage: as StoragePiece::region
  std::string key = {};                            // for errors
};

// Reads payloads and compares their CRC-32; hashes the files that the manifest lists on the way.
class PayloadVerifier {
 public:
  PayloadVerifier(const Checkpoint& checkpoint, VerifyAccount& account, WorkMeter& meter)
      : checkpoint_(checkpoint),
        account_(account),
        meter_(meter),
        selected_(checkpoint.catalog(), account.options().selection) {}

  // One that is in memory already. Thread-safe.
  void check(const VerifiedPayload& payload, std::span<const std::byte> bytes);
  // Of one that comes in pieces, in their order: a piece for the callback, and the end.
  void watch(const VerifiedPayload& payload, uint64_t offset_bytes,
             std::span<const std::byte> bytes) const;
  void compare(const VerifiedPayload& payload, uint32_t actual);
  // A storage of no tensor that is selected is neither watched nor compared.
  bool is_selected(const VerifiedPayload& payload) const;
  // Bytes that were read: for progress, and for the end after a stop. Thread-safe.
  void passed(uint64_t bytes);
  // One for run(). Thread-safe.
  void add(VerifiedPayload payload);
  void run();

 private:
  struct Sum {  // of what was read of a payload, each part moved to its place
    uint64_t count_bytes = 0;
    uint32_t crc = 0;
  };
  struct Run {  // consecutive bytes of one payload, or of none: then they are only hashed
    std::optional<size_t> payload;
    ByteRange bytes;
  };
  struct Job {
    size_t file;
    bool is_hashed;            // the whole file is read, for the manifest's sake
    std::vector<Run> runs;     // in the order of the file
    uint64_t count_bytes = 0;  // of the runs
  };

  std::vector<Job> make_jobs();
  void add_to(std::vector<Job>& jobs, size_t payload, uint64_t job_bytes) const;
  // With its payloads, first to end.
  Job whole_file(size_t file, size_t first, size_t end) const;
  void run_job(const Job& job, std::span<std::byte> slab);
  void read(const OpenedFile& file, const Run& run, std::span<std::byte> slice, Sha256Stream* hash);
  void compare_hash(const VerifiedFile& file, const Sha256& actual);
  void take(size_t payload, uint64_t offset_bytes, std::span<const std::byte> bytes);

  const Checkpoint& checkpoint_;
  VerifyAccount& account_;
  WorkMeter& meter_;
  SelectedRegions selected_;
  std::mutex mutex_;
  std::vector<VerifiedPayload> payloads_;
  std::vector<Sum> sums_;  // of each
};

}  // namespace ckpt

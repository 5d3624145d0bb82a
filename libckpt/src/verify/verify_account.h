#pragma once

#include <mutex>
#include <span>
#include <vector>

#include <ckpt/verify.h>

#include "codec/zip.h"
#include "verify/verify_files.h"

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
  uint64_t size_bytes(size_t file) const { return files_[file].count_bytes; }
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

}  // namespace ckpt

#pragma once

#include <mutex>
#include <span>
#include <vector>

#include <ckpt/verify.h>

#include "codec/zip_account.h"
#include "execute/verify_files.h"
#include "format/integrity.h"

namespace ckpt {

// Collects what verify() finds, from all threads. Files are named by their place in `files`.
class VerifyAccount {
 public:
  VerifyAccount(std::vector<VerifiedFile> files, const VerifyOptions& options)
      : files_(std::move(files)), options_(options) {}

  const std::vector<VerifiedFile>& files() const { return files_; }
  const VerifyOptions& options() const { return options_; }

  // Before any byte is labelled. Manifest entries of files that are not there are findings.
  void take_manifest(FileHashes hashes, const std::string& shown);
  bool has_manifest() const { return !hashes_.empty(); }  // one that could be read
  const Sha256* manifest_hash(size_t file) const;

  // Once the manifest was taken.
  void open_accounts();
  bool is_own(size_t file) const { return files_[file].is_own; }
  uint64_t size_bytes(size_t file) const { return files_[file].count_bytes; }
  void label(size_t file, std::span<const zip::AccountedRange> ranges);
  void label(size_t file, ByteRange bytes, ByteLabel label);
  void find(Finding finding);
  // For what every process finds: the owner of the file says it, or the first one where it is
  // no file.
  void find_if_own(Finding finding);
  // An error about a part of the checkpoint becomes a finding; one of the system is thrown on.
  void find(const Error& error, CheckKind check);
  void count(uint64_t checksums, uint64_t read_bytes);

  Findings finish();

 private:
  void require_checksums();
  void keep_own_accounts();

  std::vector<VerifiedFile> files_;
  const VerifyOptions& options_;
  std::vector<const Sha256*> hashes_;  // by file
  FileHashes manifest_;
  std::mutex mutex_;
  Findings result_;
};

}  // namespace ckpt

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/convert.h>
#include <ckpt/plan.h>

#include "staging/job_record.h"

namespace ckpt {

// The state of every file of a source: size, time of the last change, inode. What it was when the
// source was opened, and what it is after its bytes were read, shows a source that somebody writes
// to meanwhile.
class SourceFingerprint {
 public:
  // Throws NotFound where a file is missing. `source` must outlive it.
  explicit SourceFingerprint(const Checkpoint& source);

  // Throws Corrupt, with the file's name, where a file is not as it was.
  void check_unchanged() const;

  // SHA-256, hexadecimal: equal on every machine that sees the same files under the same names.
  std::string digest() const;

 private:
  const Folder& source_;
  std::filesystem::path folder_;
  std::vector<SourceFile> files_;
};

// What every process of a conversion works out alone, and equally: which pieces are written by
// whom, and what all of them must have in common.
class WriteJob {
 public:
  // `source`: nullopt where the payload does not come from files alone. Target and plan must
  // outlive it.
  WriteJob(const Target& target, const Plan& plan, const std::optional<SourceFingerprint>& source,
           const ConvertOptions& options);

  const Target& target() const { return target_; }
  const Plan& plan() const { return plan_; }
  const JobIdentity& identity() const { return identity_; }

  // Of files with archives, balanced by bytes.
  const std::vector<Piece>& payload() const { return payload_; }
  std::vector<Piece> payload_of(uint32_t rank) const;
  // What closes such files, and all other files, the markers: by who publishes.
  const std::vector<Piece>& last() const { return last_; }
  // Whether a piece that closes a file states checksums of records that others have written.
  bool needs_record_crcs() const;

  const std::string& name_of(const Piece& piece) const { return plan_.files[piece.file].path; }
  bool is_whole(const Piece& piece) const;  // all of its file
  Place path_of(const Place& folder, const Piece& piece) const;
  // The piece that was recorded, in a file of the right length.
  bool is_there(const Place& folder, const Piece& piece, const FinishedPiece& recorded) const;

 private:
  const Target& target_;
  const Plan& plan_;
  std::vector<Piece> payload_, last_;
  JobIdentity identity_;
};

}  // namespace ckpt

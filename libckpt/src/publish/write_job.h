#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/convert.h>
#include <ckpt/plan.h>
#include <ckpt/write_target.h>

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
struct WriteJob {
  // `source`: nullopt where the payload does not come from files alone. Target and plan must
  // outlive it.
  WriteJob(const Target& of_target, const Plan& of_plan,
           const std::optional<SourceFingerprint>& source, const ConvertOptions& options);

  const Target& target;
  const Plan& plan;
  JobIdentity identity;
  std::vector<Piece> payload;  // of files with archives
  std::vector<Piece> last;     // what closes them, and other files, the markers: who publishes does

  // Balanced by bytes.
  std::vector<Piece> payload_of(uint32_t rank) const;
  // Whether a piece that closes a file states checksums of records that others have written.
  bool needs_record_crcs() const;

  const std::string& name_of(const Piece& piece) const { return plan.files[piece.file].path; }
  bool is_whole(const Piece& piece) const;  // all of its file
  Place path_of(const Place& folder, const Piece& piece) const;
  // The piece that was recorded, in a file of the right length.
  bool is_there(const Place& folder, const Piece& piece, const FinishedPiece& recorded) const;
};

// A job that one process is at.
struct JobRun {
  const WriteJob& job;
  Target& target;  // the job's
  const ConversionSource& source;
  const std::optional<SourceFingerprint>& fingerprint;  // of the source, as WriteJob had it
  const ConvertOptions& options;
  ConvertReport& report;  // receives what was done

  void check_source() const {
    if (fingerprint) fingerprint->check_unchanged();
  }
};

}  // namespace ckpt

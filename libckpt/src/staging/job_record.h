#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/catalog.h>

#include "io/file.h"

namespace ckpt {

// What a staging folder is filled with. Attempts and processes may share one only where all of it
// is equal.
struct JobIdentity {
  std::string tool;    // version
  std::string plan;    // of PlanDigester, hexadecimal
  std::string source;  // SourceFingerprint::digest()
  uint32_t processes = 1;

  std::string text() const;
  static std::optional<JobIdentity> parse(std::string_view text);  // what text() gave

  // What the first difference is, for people; empty if there is none.
  std::string difference(const JobIdentity& other) const;
};

// Throws AlreadyExists with the difference where what was left is of another job.
void refuse_other_job(const std::string& left, const std::string& found, const std::string& wanted);

// What a staging folder is for: without one that parse() takes, its content is not ours.
struct StagingRecord {
  std::string job;                 // StagingOptions::job
  std::vector<std::string> files;  // StagingOptions::files

  std::string text() const;
  static std::optional<StagingRecord> parse(const std::string& text);
};

// A Piece that is written.
struct FinishedPiece {
  std::string path;  // as in Plan::files
  ByteRange bytes;
  uint32_t crc32 = 0;
  std::vector<uint32_t> record_crcs = {};  // WrittenPiece::record_crcs, where others state them
  bool operator==(const FinishedPiece&) const = default;
};

// A part record: the identity of the job, a line for each piece that one process has finished and
// synced, and a last line once its part is whole.
//   shardwise VERSION
//   plan SHA-256
//   source SHA-256
//   processes W
//   piece CHECKSUM [PATH, OFFSET, BYTES, CRC-32, [RECORD_CRC, ...]]
//     CHECKSUM: CRC-32 of the rest of the line, which is JSON
//   complete COUNT
struct PartRecord {
  std::string job;  // JobIdentity::text()
  std::vector<FinishedPiece> pieces;
  bool is_complete = false;
};
// Lines that a killed process left half written are left out; nullopt where there is no record.
std::optional<PartRecord> read_part_record(const Place& place);

// Writes one. add() is safe to use from many threads.
class PartRecordWriter {
 public:
  // Replaces the record that is there; `finished`: what was carried over from it.
  PartRecordWriter(const Place& folder, const std::string& name, const JobIdentity& job,
                   const std::vector<FinishedPiece>& finished);

  void add(const FinishedPiece& finished);
  void complete();  // on the device when it returns

 private:
  void append(const std::string& line);

  Place folder_, place_;
  std::mutex mutex_;
  std::optional<File> file_;
  uint64_t end_bytes_ = 0;
  uint64_t piece_count_ = 0;
};

}  // namespace ckpt
